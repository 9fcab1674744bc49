package sdktest

import (
	"github.com/sluice-proxy/sluice/sdk"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// Manifest returns the text of a manifest with a role, for plugins that only tests have: see sdk.Describer.
func Manifest(role sdk.Role) string {
	m := manifest.Manifest{Version: manifest.Version, Title: "a test", Release: "0", Licence: "Apache-2.0", Role: role.String(), Needs: manifest.Needs()}
	return string(m.Encode())
}
