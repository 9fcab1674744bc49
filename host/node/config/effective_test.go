package config

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEffectiveRoundTrip(t *testing.T) {
	for name, text := range map[string]string{"every field": full, "defaults": head, "no servers": head + "metricsBindAddress: ''\nhealthzBindAddress: ''\n"} {
		want, err := Parse([]byte(text), "/etc/sluice")
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(want.Effective())
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(b, "/somewhere/else")
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, b)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
			cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// TestFullFileSetsEveryField guards TestEffectiveRoundTrip: Effective could omit a field that the full file leaves at its
// default.
func TestFullFileSetsEveryField(t *testing.T) {
	c, err := Parse([]byte(full), "/")
	if err != nil {
		t.Fatal(err)
	}
	defaults := map[string]any{}
	eachField(reflect.ValueOf(Default()).Elem(), "", false, func(f field) { defaults[f.path] = f.value.Interface() })
	eachField(reflect.ValueOf(c).Elem(), "", false, func(f field) {
		if v, is := defaults[f.path]; is && reflect.DeepEqual(f.value.Interface(), v) && f.path != "healthzBindAddress" {
			t.Errorf("%s has its default: set it in the full file", f.path)
		}
	})
}

func TestEmptyAddressDisablesServer(t *testing.T) {
	c, err := Parse([]byte(head+"metricsBindAddress: ''\nhealthzBindAddress: ''\n"), "/")
	if err != nil {
		t.Fatal(err)
	}
	if c.MetricsBindAddress != "" || c.HealthzBindAddress != "" {
		t.Errorf("metrics %q, healthz %q", c.MetricsBindAddress, c.HealthzBindAddress)
	}
}
