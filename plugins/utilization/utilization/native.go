//go:build !wasip1

package utilization

import _ "embed"

//go:embed plugin.json
var manifest string

// Manifest implements sdk.Describer. A module has it in a section, and no package embed.
func (*plugin) Manifest() string { return manifest }
