package config

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTheEffectiveConfigurationReadsBackAsItself holds for a file that says everything and for one that says nothing.
func TestTheEffectiveConfigurationReadsBackAsItself(t *testing.T) {
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

// TestTheFullFileSetsEveryField keeps the test above honest: a field that the full file leaves at its default could be
// forgotten in Effective.
func TestTheFullFileSetsEveryField(t *testing.T) {
	c, err := Parse([]byte(full), "/")
	if err != nil {
		t.Fatal(err)
	}
	v, d := reflect.ValueOf(*c), reflect.ValueOf(*Default())
	for i := range v.NumField() {
		// Those of one allowed value, or whose value in the full file is the default's, which Effective writes out.
		switch name := v.Type().Field(i).Name; name {
		case "HealthzBindAddress":
		default:
			if reflect.DeepEqual(v.Field(i).Interface(), d.Field(i).Interface()) {
				t.Errorf("%s is the default: say it in the full file, and write it in Effective", name)
			}
		}
	}
}

func TestAnEmptyAddressDisablesAServer(t *testing.T) {
	c, err := Parse([]byte(head+"metricsBindAddress: ''\nhealthzBindAddress: ''\n"), "/")
	if err != nil {
		t.Fatal(err)
	}
	if c.MetricsBindAddress != "" || c.HealthzBindAddress != "" {
		t.Errorf("metrics %q, healthz %q", c.MetricsBindAddress, c.HealthzBindAddress)
	}
}
