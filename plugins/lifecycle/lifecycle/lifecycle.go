// Package lifecycle implements the plugin lifecycle: an endpoint that has just become ready gets a small share of new
// connections, which grows in steps to its full share, and one that terminates but still serves gets fewer and fewer, in stages,
// and finally none.
package lifecycle

import "github.com/sluice-proxy/sluice/sdk"

// plugin has no state except its settings: a decision follows from the times since endpoints became ready, and began to
// terminate.
type plugin struct {
	warm  *warm  // nil: endpoints have their capacity as soon as they are ready
	drain *drain // nil: the default rules decide about endpoints that terminate
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{} }

// Configure reads and checks settings. Without a section, both are on.
func (p *plugin) Configure(text []byte) error {
	w, d, warms, drains := warmDefaults(), drainDefaults(), false, false
	if err := sdk.ParseSettings(text, func(f *sdk.Fields) {
		f.Object("warm", func(f *sdk.Fields) { warms = true; w.fields(f) })
		f.Object("drain", func(f *sdk.Fields) { drains = true; d.fields(f) })
	}); err != nil {
		return err
	}
	p.warm, p.drain = nil, nil
	if warms || !drains {
		p.warm = w.warm()
	}
	if drains || !warms {
		var err error
		if p.drain, err = d.drain(); err != nil {
			return err
		}
	}
	return nil
}

// Decide reduces the capacity of each endpoint that is new or terminates.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	if p.warm != nil {
		p.warm.decide(req, resp)
	}
	if p.drain != nil {
		p.drain.decide(req, resp)
	}
	return nil
}

// elapsed returns the time since then in milliseconds. Requests have times in whole seconds, rounded down, so then is rounded
// down too: a requeued request is never too early. If the clock has gone back, it returns 0.
func elapsed(req *sdk.Request, then sdk.Time) int64 {
	return max(0, int64(req.Now())-int64(then)/1000*1000)
}
