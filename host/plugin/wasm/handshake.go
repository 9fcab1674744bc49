package wasm

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/manifest"
)

// introduce reads the ABI version of a module from its first instance, and refuses one that this host does not serve, and a
// module without manifest.
func (g *guest) introduce(said *manifest.Manifest, unsaid error) error {
	if err := g.do(call{op: opVersion, fuel: g.p.limits.ConfigureFuel, limit: g.p.limits.ConfigureTime}); err != nil {
		return err
	}
	version := uint32(g.call.value)
	switch major, minor := version>>16, version&0xffff; {
	case major != abi.Major:
		return fmt.Errorf("module refused: it has ABI version %d.%d, this host needs %d.%d: rebuild it with the SDK of this host",
			major, minor, abi.Major, abi.Minor)
	case unsaid != nil:
		return fmt.Errorf("module refused: %w", unsaid)
	}
	if err := said.CheckMinor(uint16(version)); err != nil {
		return fmt.Errorf("module refused: %w: rebuild it with the SDK of this host", err)
	}
	g.p.report.Counters = nil
	for _, c := range said.Counters {
		g.p.report.Counters = append(g.p.report.Counters, c.Name)
	}
	g.p.report.ABI, g.p.report.Manifest, g.p.report.Role = version, *said, said.ABIRole()
	return nil
}

// checkSettings returns an error if sluice_configure has refused settings, or has returned a handle that it has returned before.
func (g *guest) checkSettings() (id uint32, err error) {
	c := &g.call
	if c.value < 0 {
		return 0, fmt.Errorf("settings refused: %s", withLogged(abi.CodeText(c.value), c.loggedError))
	}
	if id = uint32(c.value); g.ids[id] {
		return 0, fmt.Errorf("sluice_configure returned the handle %d, which it has returned for other settings", id)
	}
	if g.ids == nil {
		g.ids = map[uint32]bool{}
	}
	g.ids[id] = true
	return id, nil
}

// checkInputs returns the inputs that the plugin asks for, or an error if this host does not have them.
func (g *guest) checkInputs() (in asked, err error) {
	c := &g.call
	if n := int32(c.needs); n < 0 {
		return in, fmt.Errorf("sluice_needs: %s", withLogged(abi.CodeText(int64(n)), c.loggedError))
	}
	if err := g.p.host.checkNeeds(c.needs); err != nil {
		return in, err
	}
	in.needs = c.needs
	switch n := c.value; {
	case c.err != nil:
		return in, c.err
	case c.stage == stageKeys && n < 0:
		return in, fmt.Errorf("sluice_keys: %s", withLogged(abi.CodeText(n), c.loggedError))
	case c.stage == stageKeys:
		return in, fmt.Errorf("sluice_keys: returned a length of %d bytes for a buffer of %d", n, abi.MaxKeysLen)
	}
	if len(c.out) == 0 {
		return in, nil
	}
	if in.keys, err = abi.ParseKeys(string(c.out)); err != nil {
		return in, fmt.Errorf("module refused: sluice_keys: %w", err)
	}
	return in, g.p.host.checkKeys(in.keys)
}
