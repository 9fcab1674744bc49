// Package main is tiers: endpoints whose Pods have one of some tiers get another share than the others.
package main

import (
	"errors"
	"math"
	"slices"

	"github.com/sluice-proxy/sluice/sdk"
)

func init() { sdk.Register(func() sdk.Plugin { return &plugin{} }) }

func main() {}

type plugin struct {
	factor float64
	share  uint64 // factor in millionths
	only   bool
	note   string
	tiers  []string
}

func (p *plugin) Configure(settings []byte) error {
	*p = plugin{factor: 2, note: "tier", tiers: []string{"gold"}}
	err := sdk.ParseSettings(settings, func(f *sdk.Fields) {
		f.Float("factor", &p.factor, 0.01, 100)
		f.Bool("only", &p.only)
		f.String("note", &p.note)
		f.Strings("tiers", &p.tiers)
	})
	switch {
	case err != nil:
		return err
	case len(p.note) < 1 || len(p.note) > 100:
		return errors.New("note: want a text of 1 to 100 bytes")
	case len(p.tiers) < 1 || len(p.tiers) > 4 || slices.ContainsFunc(p.tiers, func(t string) bool { return len(t) < 1 || len(t) > 63 }):
		return errors.New("tiers: want 1 to 4 texts of 1 to 63 bytes")
	}
	p.share = uint64(math.Round(p.factor * sdk.One))
	return nil
}

// Keys implements sdk.Keyer.
func (*plugin) Keys() []string { return []string{sdk.PodLabel("tier")} }

func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	has := func(i int) bool {
		id, ok := req.PodValue(i, 0)
		return ok && slices.Contains(p.tiers, req.Text(id))
	}
	found := false
	for i := range req.NumEndpoints() {
		if !has(i) {
			continue
		}
		e := req.Endpoint(i)
		share := uint64(e.Share()) * p.share / sdk.One
		found = found || share > 0 && e.Capacity() > 0 && e.Eligible()
		resp.SetShare(i, int(min(share, math.MaxUint32)))
		resp.SetReason(i, p.note)
	}
	for i := 0; p.only && found && i < req.NumEndpoints(); i++ {
		if !has(i) {
			resp.SetShare(i, 0)
		}
	}
	return nil
}
