// Command signals is a plugin for tests: it keeps all weights, and its reasons say what it sees of the connections to each
// endpoint.
package main

import (
	"strconv"

	"github.com/sluice-proxy/sluice/sdk"
)

// maxReasons bounds the work: test kernels are slow.
const maxReasons = 10

type plugin struct {
	requeueSeconds int64 // how often it asks for a call; 0: only for new failures
}

func (p *plugin) Configure(settings []byte) error {
	return sdk.ParseSettings(settings, func(f *sdk.Fields) { f.Int("requeueSeconds", &p.requeueSeconds, 0, 3600) })
}

// Needs implements sdk.Needer.
func (*plugin) Needs() sdk.Need { return sdk.NeedOutcomes | sdk.NeedConnections }

// Decide implements sdk.Plugin.
func (p *plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	if p.requeueSeconds > 0 {
		resp.RequeueAfter(sdk.Duration(p.requeueSeconds) * sdk.Second)
	}
	age, counted := req.ConnectionsAge()
	for i := range req.NumEndpoints() {
		if i >= maxReasons {
			continue
		}
		o, _ := req.TotalOutcomes(i)
		text := "attempts=" + number(o.Attempts) + " answered=" + number(o.Answered) + " refused=" + number(o.Refused) +
			" unanswered=" + number(o.Unanswered) + " window=" + number(uint64(req.OutcomesWindow().Milliseconds()))
		if open, known := req.Endpoint(i).Connections(); counted && known {
			text += " open=" + number(uint64(open)) + " age=" + number(uint64(age.Milliseconds()))
		}
		resp.SetReason(i, text)
	}
	return nil
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }

func init() { sdk.Register(func() sdk.Plugin { return &plugin{} }) }

func main() {}
