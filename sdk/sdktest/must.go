package sdktest

import (
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/abi"
)

// MustRun is Run that fails the test on an error.
func MustRun(t testing.TB, p sdk.Plugin, settings string, req *abi.Request) *abi.Response {
	t.Helper()
	resp, err := Run(p, settings, req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// MustRunChain is RunChain that fails the test on an error.
func MustRunChain(t testing.TB, req *abi.Request, plugins ...*sdk.NativePlugin) []*abi.Response {
	t.Helper()
	all, err := RunChain(req, plugins...)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Native returns a plugin with settings, "" for none.
func Native(t testing.TB, create func() sdk.Plugin, settings string) *sdk.NativePlugin {
	t.Helper()
	p, err := sdk.NewNativePlugin(create, []byte(settings))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ZonePercents returns what each zone gets of the new connections with a chain of plugins, in percent. It fails the test if the
// chain fails or leaves no endpoint.
func ZonePercents(t testing.TB, req *abi.Request, plugins ...*sdk.NativePlugin) map[string]float64 {
	t.Helper()
	parts, err := Parts(req, plugins...)
	if err != nil || parts == nil {
		t.Fatalf("parts %v, %v", parts, err)
	}
	sum := map[string]float64{}
	for i, part := range parts {
		sum[req.Endpoints[i].Zone] += 100 * part
	}
	return sum
}

// CheckRefused fails the test unless the plugin refuses each of the settings with an error that has the given text.
func CheckRefused(t testing.TB, create func() sdk.Plugin, refusals map[string]string) {
	t.Helper()
	for settings, want := range refusals {
		if err := create().Configure([]byte(settings)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("settings %s: error %v, want %q", settings, err, want)
		}
	}
}
