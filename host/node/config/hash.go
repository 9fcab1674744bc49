package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// hashDigits is the length of a hash: like a revision of a policy.
const hashDigits = 12

// Hash identifies what a configuration says: hexadecimal digits of a digest of all fields with their defaults, as /configz shows
// them, except hostnameOverride, which differs by node. White space, comments, the order of fields and fields that are set to
// their default make no difference; the contents of files that the configuration names, such as modules, are not in it.
func (c *Config) Hash() string {
	same := *c
	same.HostnameOverride = ""
	text, err := json.Marshal(same.Effective())
	if err != nil {
		panic(fmt.Sprintf("config: encode the effective configuration: %v", err)) // it consists of plain values, and settings that have been parsed
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:hashDigits]
}
