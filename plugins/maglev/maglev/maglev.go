// Package maglev implements the plugin maglev: each client is sent to the same endpoint from every node.
package maglev

import (
	"strconv"

	"github.com/sluice-proxy/sluice/plugins/internal/weights"
	"github.com/sluice-proxy/sluice/sdk"
)

// plugin has no state except its settings: a decision follows from the request alone.
type plugin struct {
	settings settings

	shares []uint64 // by endpoint; reused between requests
}

// New returns an unconfigured plugin.
func New() sdk.Plugin { return &plugin{settings: defaults()} }

// Decide asks for endpoints by hash of the client's address. The data plane fills the table, from endpoints and weights alone. The less they
// sum up to, the more slots of the table each unit of weight has, so it reduces them.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	resp.SetBalance(sdk.BalanceSourceHash)
	p.shares = p.shares[:0]
	for i := range req.NumEndpoints() {
		p.shares = append(p.shares, uint64(req.Endpoint(i).Weight()))
	}
	weights.Reduce(p.shares, uint64(p.settings.MaxTotal))
	total := uint64(0)
	for _, w := range p.shares {
		total += w
	}
	var reason sdk.ReasonID
	last := uint64(0) // weight that reason is about
	for i, w := range p.shares {
		if w == 0 {
			continue
		}
		if w != last {
			last, reason = w, resp.AddReason("by client address: "+strconv.FormatUint(w, 10)+" of "+strconv.FormatUint(total, 10))
		}
		resp.SetWeight(i, int(w))
		resp.SetReasonID(i, reason)
	}
	return nil
}
