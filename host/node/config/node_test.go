package config

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

func parse(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(head+text), "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestDetectLocalModes(t *testing.T) {
	const cidr = "clusterCIDR: 10.244.0.0/16\n"
	for name, c := range map[string]struct {
		text       string
		sources    []netip.Prefix
		interfaces []string
		warnings   []string // prefixes
	}{
		"ClusterCIDR by default": {cidr, prefixes("10.244.0.0/16"), nil, nil},
		"ClusterCIDR empty":      {"detectLocalMode: ClusterCIDR\n", nil, nil, []string{"clusterCIDR: empty"}},
		"NodeCIDR":               {"detectLocalMode: NodeCIDR\n" + cidr, nil, nil, []string{"clusterCIDR: ignored"}},
		"BridgeInterface": {"detectLocalMode: BridgeInterface\ndetectLocal: {bridgeInterface: cni0, interfaceNamePrefix: veth}\n",
			nil, []string{"cni0"}, []string{"detectLocal.interfaceNamePrefix: ignored"}},
		"InterfaceNamePrefix": {"detectLocalMode: InterfaceNamePrefix\ndetectLocal: {interfaceNamePrefix: veth}\n",
			nil, []string{"veth*"}, nil},
		"bridge without its mode": {cidr + "detectLocal: {bridgeInterface: cni0}\n", prefixes("10.244.0.0/16"), nil,
			[]string{"detectLocal.bridgeInterface: ignored"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := parse(t, c.text)
			if !slices.Equal(got.PodSources(), c.sources) || !slices.Equal(got.PodInterfaces(), c.interfaces) {
				t.Errorf("sources %v, interfaces %v", got.PodSources(), got.PodInterfaces())
			}
			warnings := got.Warnings()
			if len(warnings) != len(c.warnings) {
				t.Fatalf("warnings %q", warnings)
			}
			for i, w := range warnings {
				if !strings.HasPrefix(w, c.warnings[i]) {
					t.Errorf("warning %q, want %q", w, c.warnings[i])
				}
			}
		})
	}
}

func TestInterfaceDetectionRequiresName(t *testing.T) {
	for mode, field := range map[string]string{BridgeInterface: "bridgeInterface", InterfaceNamePrefix: "interfaceNamePrefix"} {
		_, err := Parse([]byte(head+"detectLocalMode: "+mode+"\n"), "")
		if err == nil || !strings.Contains(err.Error(), "detectLocal."+field+": required") {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestUnspecifiedBindAddressIsDefault(t *testing.T) {
	for _, s := range []string{"0.0.0.0", "'::'", "''"} {
		if c := parse(t, "bindAddress: "+s+"\n"); c.BindAddress.IsValid() {
			t.Errorf("%s: %s", s, c.BindAddress)
		}
	}
	c := parse(t, "bindAddress: 127.0.0.1\n")
	if !strings.Contains(strings.Join(c.Warnings(), "\n"), "loopback") {
		t.Errorf("no warning about %s: %q", c.BindAddress, c.Warnings())
	}
}

func TestDefaultsYAMLContainsEveryFieldAtDefault(t *testing.T) {
	c, err := Parse([]byte(DefaultsYAML()), "")
	if err != nil {
		t.Fatal(err)
	}
	if !c.Equal(Default()) {
		t.Errorf("%+v\nis not\n%+v", c, Default())
	}
	var each func(t reflect.Type, indent string)
	each = func(typ reflect.Type, indent string) {
		for _, f := range strictyaml.Fields(typ) {
			if !strings.Contains(DefaultsYAML(), "\n"+indent+f.Name+":") {
				t.Errorf("no field %s", f.Name)
			}
			if isSection(f.Type) {
				each(f.Type, indent+"  ")
			}
		}
	}
	each(reflect.TypeFor[file](), "")
}
