package wasm

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// introduce reads the ABI version of a module from its first instance, and refuses one that this host does not serve.
func (g *guest) introduce() error {
	version, err := g.callU32("sluice_abi_version")
	if err != nil {
		return err
	}
	switch major, minor := version>>16, version&0xffff; {
	case major != abi.Major:
		return fmt.Errorf("module refused: it has ABI version %d.%d, this host %d.%d: rebuild it with the SDK of this host",
			major, minor, abi.Major, abi.Minor)
	case minor < abi.MinMinor:
		return fmt.Errorf("module refused: it is built for ABI version %d.%d, which was never released: rebuild it with the current SDK",
			major, minor)
	}
	g.p.report.ABI = version
	return nil
}

// neededInputs asks for the bits of the inputs that the plugin needs with settings.
func (g *guest) neededInputs(handle uint32, budget *int64) (uint32, error) {
	f := g.module.ExportedFunction("sluice_needs")
	if f == nil {
		return 0, nil
	}
	g.args[0] = uint64(handle)
	err := g.call(f, "sluice_needs", *budget)
	*budget -= g.fuelUsed
	if err != nil {
		return 0, err
	}
	if n := int32(g.args[0]); n < 0 {
		return 0, fmt.Errorf("sluice_needs: %s", g.withLoggedError(abi.CodeText(int64(n))))
	}
	needs := uint32(g.args[0])
	return needs, g.p.host.checkNeeds(needs)
}

// declaredKeys asks for the keys that the plugin declares for settings.
func (g *guest) declaredKeys(handle uint32, budget *int64) ([]string, error) {
	f := g.module.ExportedFunction("sluice_keys")
	if f == nil {
		return nil, nil
	}
	if err := g.ensureBuffer(&g.resp, abi.MaxKeysLen, budget); err != nil {
		return nil, err
	}
	g.args[0], g.args[1], g.args[2] = uint64(handle), uint64(g.resp.ptr), uint64(abi.MaxKeysLen)
	err := g.call(f, "sluice_keys", *budget)
	*budget -= g.fuelUsed
	if err != nil {
		return nil, err
	}
	n := int(int32(g.args[0]))
	switch {
	case n < 0:
		return nil, fmt.Errorf("sluice_keys: %s", g.withLoggedError(abi.CodeText(int64(n))))
	case n > abi.MaxKeysLen:
		return nil, fmt.Errorf("sluice_keys: returned a length of %d bytes for a buffer of %d", n, abi.MaxKeysLen)
	}
	text := g.view(g.resp)[:n]
	keys, err := abi.ParseKeys(string(text))
	if err != nil {
		return nil, fmt.Errorf("module refused: sluice_keys: %w", err)
	}
	clear(text) // the first decision must not see it
	return keys, g.p.host.checkKeys(keys)
}
