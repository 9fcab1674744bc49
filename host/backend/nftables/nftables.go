package nftables

import (
	"context"
	"log/slog"
	"time"

	"github.com/sluice-proxy/sluice/host/backend/nftables/rules"
	"github.com/sluice-proxy/sluice/host/core/plan"
)

// Options configure Open.
type Options struct {
	// Netns is a file descriptor of the network namespace to work in. Zero is the current one. It may be closed after
	// Open.
	Netns int
	// Now is the clock.
	Now func() time.Time
	// Log receives warnings. Nil discards them.
	Log *slog.Logger
	// Affinity bounds the clients with session affinity; zero means the defaults.
	Affinity rules.AffinityLimits
}

// Open connects to nf_tables. It neither reads nor writes any table.
func Open(o Options) (*rules.Backend, error) {
	return rules.Open(rules.Options{Netns: o.Netns, Now: o.Now, Log: o.Log, Affinity: o.Affinity})
}

// Caps returns what the tables can represent.
func Caps() plan.Caps { return rules.Slots{}.Caps() }

// Cleanup deletes sluice's tables, of this mode or of mode ipvs, and returns the names of those that existed.
func Cleanup(ctx context.Context, netns int) (removed []string, err error) {
	return rules.Cleanup(ctx, netns)
}

// IsForeignTable reports whether Read failed because a table with sluice's name was not written by this version and
// mode. Apply replaces such a table.
func IsForeignTable(err error) bool { return rules.IsForeignTable(err) }

// AffinityUsage is how many clients with session affinity are recorded.
type AffinityUsage = rules.AffinityUsage

// ReadAffinityUsage reads it from the tables of either mode.
func ReadAffinityUsage(ctx context.Context, netns int) (AffinityUsage, error) {
	return rules.ReadAffinityUsage(ctx, netns)
}

// LocalhostRefused counts packets to NodePorts at loopback addresses that were refused because of their protocol.
type LocalhostRefused = rules.LocalhostRefused

// ReadLocalhostRefused reads the counters of IPv4 and IPv6 from the tables of either mode.
func ReadLocalhostRefused(ctx context.Context, netns int) ([2]LocalhostRefused, error) {
	return rules.ReadLocalhostRefused(ctx, netns)
}

// Retries counts refused connections that are tried again.
type Retries = rules.Retries

// ReadRetries reads the counters from the tables of either mode.
func ReadRetries(ctx context.Context, netns int) (Retries, error) {
	return rules.ReadRetries(ctx, netns)
}

// Feature is a kernel feature that the ruleset uses, with the result of Probe.
type Feature = rules.Feature

// ErrNotTried is the result for features that can only be tested by committing a ruleset.
var ErrNotTried = rules.ErrNotTried

// Probe tests the features that the ruleset uses. See rules.Probe.
func Probe(ctx context.Context) (features []Feature, own bool, err error) { return rules.Probe(ctx) }
