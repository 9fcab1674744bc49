// Package inputs is a plugin for tests whose weights are a hash of every optional input. c/inputs.c is the same in C.
package inputs

import "github.com/sluice-proxy/sluice/sdk"

// New returns the plugin.
func New() sdk.Plugin { return &plugin{} }

type plugin struct{}

// Keys are the keys of the plugin: four of Pods, one of Nodes, one of load, two of Services, one of namespaces.
func Keys() []string {
	return []string{
		sdk.ServiceLabel("team"), sdk.PodLabel("track"), sdk.PodAnnotation("example.com/stage"), sdk.PodCPU, sdk.ServiceAnnotation("example.com/tier"),
		sdk.PodLabel("version"), sdk.NodeLabel("example.com/pool"), sdk.NamespaceLabel("env"), sdk.Load("rps_fractional"),
	}
}

func (*plugin) Configure([]byte) error { return nil }
func (*plugin) Keys() []string         { return Keys() }

func (*plugin) Needs() sdk.Need {
	return sdk.NeedConnections | sdk.NeedOutcomes | sdk.NeedNodes | sdk.NeedPodNames | sdk.NeedEndpointState
}

// hash is FNV-1a, with a word at a time for numbers.
type hash uint64

func (h *hash) number(n uint64) { *h = (*h ^ hash(n)) * 0x100000001B3 }

func (h *hash) text(s string, present bool) {
	if !present {
		h.number(0xFFFF)
		return
	}
	h.number(uint64(len(s)))
	for i := range len(s) {
		h.number(uint64(s[i]))
	}
}

func (*plugin) Decide(req *sdk.Request, resp *sdk.Response) error {
	h := hash(0xCBF29CE484222325)
	index, count, _ := req.NodeIndex()
	h.number(uint64(index))
	h.number(uint64(count))
	age, counted := req.ConnectionsAge()
	if counted {
		h.number(uint64(age.Milliseconds()))
	}
	h.number(uint64(req.OutcomesWindow().Milliseconds()))
	for k := range 3 {
		id, present := req.ServiceValue(k)
		h.text(req.Text(id), present)
	}
	for i := range req.NumZones() {
		z := req.Zone(i)
		h.text(req.Text(z.Name), true)
		for _, n := range [...]uint64{uint64(z.Nodes), uint64(z.Ready), uint64(z.Serving), uint64(z.Total), z.MilliCPU} {
			h.number(n)
		}
	}
	resp.SetGroups(1, 2)
	resp.Count(0, 1)
	for i := range req.NumEndpoints() {
		e, h := req.Endpoint(i), h
		h.number(uint64(e.Conditions()))
		h.number(uint64(e.ReadySince()))
		h.number(uint64(e.TerminatingSince()))
		h.number(uint64(e.Capacity()))
		h.number(uint64(e.Share()))
		h.number(uint64(req.GroupPart(e.Group())))
		if n, counted := e.Connections(); counted {
			h.number(uint64(n))
		}
		h.text(req.Text(e.Pod()), true)
		now := req.Outcomes(i)
		total, since := req.TotalOutcomes(i)
		for _, n := range [...]uint64{
			now.Attempts, now.Answered, now.Refused, now.Unanswered, total.Attempts, total.Answered, total.Refused, total.Unanswered, uint64(since),
		} {
			h.number(n)
		}
		for k := range 5 {
			id, present := req.PodValue(i, k)
			h.text(req.Text(id), present)
		}
		var state [sdk.MaxEndpointState]byte
		copy(state[:], req.EndpointState(i))
		h.text(string(state[:]), true)
		if i%3 > 0 && h%4 > 0 {
			resp.SetEndpointState(i, append(state[1:], byte(h)))
		}
		resp.Count(1, int(h>>33&1)<<30)
		resp.SetShare(i, 1+int(h%60_000))
		resp.SetGroup(i, i%2)
		resp.SetShed(i, int(h>>20%1001))
	}
	return nil
}
