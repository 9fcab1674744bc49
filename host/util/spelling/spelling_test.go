package spelling

import (
	"fmt"
	"testing"
)

func TestDidYouMean(t *testing.T) {
	names := []string{"least-loaded", "zone-aware", "own-group", "a"}
	for s, want := range map[string]string{
		"leastloded": "least-loaded", "Least_Loaded": "least-loaded", "zoneaware": "zone-aware", "capacity": "", "laest-loaded": "least-loaded", "onw-gruop": "own-group", "b": "", "": "", "a": "",
		"OwnGroup": "own-group", "own-groop": "own-group",
	} {
		got := DidYouMean(s, names)
		if want != "" {
			want = fmt.Sprintf(" (did you mean %q?)", want)
		}
		if got != want {
			t.Errorf("%s:%s, want%s", s, got, want)
		}
	}
}

// TestNamesOfAnotherMeaningAreNotProposed: one that is followed blindly must not change what is configured.
func TestNamesOfAnotherMeaningAreNotProposed(t *testing.T) {
	for s, other := range map[string]string{
		"conntrack.max": "conntrack.min", "maxSyncPeriod": "minSyncPeriod", "tcpTimeout": "udpTimeout", "internalTrafficPolicy": "externalTrafficPolicy", "syncPeriod": "minSyncPeriod",
		"disableProfiling": "enableProfiling", "include-cidrs": "exclude-cidrs", "tcptimeout": "udpTimeout", "tcp": "udp", "mx": "min",
	} {
		if got := DidYouMean(s, []string{other}); got != "" {
			t.Errorf("%s:%s", s, got)
		}
	}
}
