package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Values of the field mode.
const (
	ModeNFTables = "nftables"
	ModeIPVS     = "ipvs" // virtual servers of IPVS, and nftables rules for what IPVS cannot do
)

// Modes returns the values of the field mode. host/node/agent/dataplane has an entry for each.
func Modes() []string { return []string{ModeNFTables, ModeIPVS} }

// CheckMode returns an error unless mode is one of Modes.
func CheckMode(mode string) error {
	if !slices.Contains(Modes(), mode) {
		return fmt.Errorf("%q: must be %s", mode, strings.Join(Modes(), " or "))
	}
	return nil
}

// SameBackend reports whether two configurations ask for the same backend with the same options.
func (c *Config) SameBackend(d *Config) bool {
	a, b := c.IPVS, d.IPVS
	a.ConnectionMetrics, b.ConnectionMetrics = false, false
	return c.Mode == d.Mode && c.SessionAffinity == d.SessionAffinity && (c.Mode != ModeIPVS || reflect.DeepEqual(a, b))
}

// WithBackend returns c with the mode of d and its options.
func (c *Config) WithBackend(d *Config) *Config {
	out := *c
	out.Mode, out.IPVS, out.SessionAffinity = d.Mode, d.IPVS, d.SessionAffinity
	return &out
}
