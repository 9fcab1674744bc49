package wasm

import (
	"fmt"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// introduce reads the ABI version and the needs of a module from its first instance, and refuses what this host cannot serve.
func (g *guest) introduce() error {
	r := &g.p.report
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
	r.ABI = version
	if g.module.ExportedFunction("sluice_needs") == nil {
		return nil
	}
	if r.Needs, err = g.callU32("sluice_needs"); err != nil {
		return err
	}
	return g.p.host.checkNeeds(r.Needs)
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
