package wasm

import (
	"errors"
	"fmt"
	"slices"

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

// configure passes the settings, if there are any, to sluice_configure.
func (g *guest) configure() error {
	p := g.p
	g.sees = abi.View{Settings: abi.NoSettings, Needs: p.report.Needs}
	budget := p.limits.ConfigureFuel
	if !p.configurable {
		if s := string(p.settings); s != "" && s != "{}" && s != "null" {
			return errors.New("settings: the plugin accepts none (it does not export sluice_configure)")
		}
		return nil
	}
	if len(p.settings) == 0 {
		return nil
	}
	g.begin(p.limits.ConfigureTime)
	defer g.timer.Stop()
	var b buffer
	if err := g.ensureBuffer(&b, len(p.settings), &budget); err != nil {
		return err
	}
	copy(g.view(b), p.settings)
	g.args[0], g.args[1] = uint64(b.ptr), uint64(len(p.settings))
	err := g.call(g.module.ExportedFunction("sluice_configure"), "sluice_configure", budget)
	p.initFuel += g.fuelUsed
	if err != nil {
		return err
	}
	handle := int32(g.args[0])
	if handle < 0 {
		return fmt.Errorf("settings refused: %s", g.withLoggedError(abi.CodeText(int64(handle))))
	}
	g.sees.Settings = uint32(handle)
	return nil
}

// declareKeys asks for the keys of the settings, which must be the same in each instance.
func (g *guest) declareKeys() error {
	p := g.p
	if g.module.ExportedFunction("sluice_keys") == nil {
		return nil
	}
	g.begin(p.limits.ConfigureTime)
	defer g.timer.Stop()
	budget := p.limits.ConfigureFuel
	if err := g.ensureBuffer(&g.resp, abi.MaxKeysLen, &budget); err != nil {
		return err
	}
	g.args[0], g.args[1], g.args[2] = uint64(g.sees.Settings), uint64(g.resp.ptr), uint64(abi.MaxKeysLen)
	err := g.call(g.module.ExportedFunction("sluice_keys"), "sluice_keys", budget)
	p.initFuel += g.fuelUsed
	if err != nil {
		return err
	}
	n := int(int32(g.args[0]))
	switch {
	case n < 0:
		return fmt.Errorf("sluice_keys: %s", g.withLoggedError(abi.CodeText(int64(n))))
	case n > abi.MaxKeysLen:
		return fmt.Errorf("sluice_keys: returned a length of %d bytes for a buffer of %d", n, abi.MaxKeysLen)
	}
	text := g.view(g.resp)[:n]
	keys, err := abi.ParseKeys(string(text))
	if err != nil {
		return fmt.Errorf("module refused: sluice_keys: %w", err)
	}
	clear(text) // the first decision must not see it
	switch {
	case p.report.Keys == nil:
		if err := p.host.checkKeys(keys); err != nil {
			return err
		}
		p.report.Keys = append([]string{}, keys...) // not nil
	case !slices.Equal(keys, p.report.Keys):
		return fmt.Errorf("module refused: sluice_keys: two instances declare different keys for the same settings: %q and %q", p.report.Keys, keys)
	}
	g.sees.Keys = p.report.Keys
	return nil
}
