package bundle

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"regexp"
)

var (
	// nameToken is a name as Kubernetes allows it.
	nameToken = regexp.MustCompile(`[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?`)
	// qualifiedName is a namespace and a name. Log lines may be about objects that exist no more.
	qualifiedName = regexp.MustCompile(`(^|[^-a-z0-9./_])([a-z0-9][-a-z0-9]{0,62})/([a-z0-9][-a-z0-9.]{0,252})`)
	// labeledName is the name of a field of a metric or of JSON, and a name.
	labeledName = regexp.MustCompile(`"?\b(?:namespace|service|pod|policy_namespace)"?\s*[:=]\s*"([a-z0-9][-a-z0-9.]*)"`)
	addressLike = regexp.MustCompile(`^[0-9.]+$`)
)

// Anonymize replaces the names of Services, namespaces and Pods in all parts by hashes. The key of the hashes is random and not
// kept: nobody can look up a name that is easy to guess.
func Anonymize(parts []Part) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	names := map[string]bool{}
	for i := range parts {
		collectNames(parts[i].Text, names)
		if parts[i].Err != nil {
			collectNames([]byte(parts[i].Err.Error()), names)
		}
	}
	hide := func(token []byte) []byte {
		if !names[string(token)] {
			return token
		}
		mac := hmac.New(sha256.New, key)
		mac.Write(token)
		return []byte("x" + hex.EncodeToString(mac.Sum(nil))[:10])
	}
	for i := range parts {
		if parts[i].Name == "version.txt" || parts[i].Name == "check.txt" {
			continue // they are about the host
		}
		parts[i].Text = nameToken.ReplaceAllFunc(parts[i].Text, hide)
		if parts[i].Err != nil {
			parts[i].Err = errors.New(string(nameToken.ReplaceAllFunc([]byte(parts[i].Err.Error()), hide)))
		}
	}
	return nil
}

// collectNames adds the names in a text. Numbers and addresses are none: 10.0.0.0/8 is not a Service.
func collectNames(text []byte, names map[string]bool) {
	add := func(name []byte) {
		if name = bytes.TrimRight(name, ".-"); len(name) > 0 && !addressLike.Match(name) {
			names[string(name)] = true
		}
	}
	for _, m := range qualifiedName.FindAllSubmatch(text, -1) {
		if !addressLike.Match(m[2]) {
			add(m[2])
			add(m[3])
		}
	}
	for _, m := range labeledName.FindAllSubmatch(text, -1) {
		add(m[1])
	}
}
