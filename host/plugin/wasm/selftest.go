package wasm

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// SelfTest describes the self-test of a loaded plugin, in which each sample request had equal answers.
type SelfTest struct {
	Samples   int
	Orders    int           // in which they were asked
	Calls     int           // in all orders
	Instances int           // asked; each also when it had answered other samples before
	Fuel      int64         // used by the calls
	Duration  time.Duration // with the time to instantiate; zero without Options.Now
}

// pass asks all samples in one order.
type pass struct {
	name     string
	instance string // "" continues with that of the pass before
	order    func(n int) []int
}

// passes returns the orders of the self-test. The first is the reference. Together they change the number of calls before a
// sample, also modulo any number, the samples before it, and the addresses and sizes of the buffers in guest memory.
func passes() []pass {
	return []pass{
		{"in order", "a new instance", inOrder},
		{"each twice in a row", "", func(n int) []int {
			out := make([]int, 0, 2*n)
			for i := range n {
				out = append(out, i, i)
			}
			return out
		}},
		{"in reverse order", "a second instance", func(n int) []int {
			out := inOrder(n)
			for i := range out {
				out[i] = n - 1 - i
			}
			return out
		}},
		{"interleaved from both ends", "", func(n int) []int {
			out := inOrder(n)
			for i := range out {
				if out[i] = i / 2; i%2 == 1 {
					out[i] = n - 1 - i/2
				}
			}
			return out
		}},
		{"shuffled", "a third instance", func(n int) []int { return rand.New(rand.NewPCG(3, 5)).Perm(n) }},
		{"in order", "", inOrder},
	}
}

func inOrder(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// selfTest asks Samples with settings in several orders, in new and in used instances. All answers to the same sample must be
// equal. Each call has the fuel of a decision, and the time of a configuration: a virtual machine counts time in which it does
// not run, and one such call would refuse the module.
func (p *Plugin) selfTest(ctx context.Context, settings string) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	if err := p.ensureGuest(); err != nil {
		return err
	}
	h, err := p.guest.handleOf(settings)
	if err != nil {
		return err
	}
	p.declared.set(settings, h.asked)
	samples := Samples(h.keys...)
	requests, want := make([]*abi.Request, len(samples)), make([]abi.Response, len(samples))
	for i, s := range samples {
		requests[i] = s.Request
	}
	t := &p.report.SelfTest
	t.Samples, t.Orders = len(samples), len(passes())
	defer p.discard()
	var got abi.Response
	instance := ""
	for k, pass := range passes() {
		used := "a used instance"
		if pass.instance != "" {
			instance, used = pass.instance, pass.instance
			p.discard()
			t.Instances++
		}
		previous := -1
		for _, i := range pass.order(len(samples)) {
			if err := ctx.Err(); err != nil {
				return fmt.Errorf("self-test: %w", err)
			}
			answer := &got
			if k == 0 {
				answer = &want[i]
			}
			if err := p.ask(requests[i], settings, answer); err != nil {
				return fmt.Errorf("self-test: sample request %q, asked %s in %s: %w", samples[i].Name, pass.name, instance, err)
			}
			t.Calls++
			t.Fuel += p.guest.fuelUsed
			if diff := diffResponses(requests[i], &want[i], answer); diff != "" {
				return fmt.Errorf("self-test: sample request %q has two answers: %s, first asked in order in a new instance, then %s in %s: %s",
					samples[i].Name, diff, pass.name, used, impureCause(previous == i))
			}
			previous = i
		}
	}
	return nil
}

// ask calls the current guest, or a new one if there is none.
func (p *Plugin) ask(req *abi.Request, settings string, resp *abi.Response) error {
	if err := p.ensureGuest(); err != nil {
		return err
	}
	h, err := p.guest.handleOf(settings)
	if err != nil {
		return err
	}
	if needs := p.Needs(settings); h.needs != needs {
		return fmt.Errorf("sluice_needs: two instances need different inputs for the same settings: %#x and %#x", needs, h.needs)
	}
	if keys := p.Keys(settings); !slices.Equal(h.keys, keys) {
		return fmt.Errorf("sluice_keys: two instances declare different keys for the same settings: %q and %q", keys, h.keys)
	}
	resp.Reset(len(req.Endpoints))
	p.guest.selfTest = true
	return p.guest.callDecide(&p.decoder, req, h, resp)
}

// impureCause tells the author of a plugin why two answers to the same request may differ.
func impureCause(inARow bool) string {
	if inARow {
		return "the plugin counts its calls, or draws numbers that continue from call to call; keep what has to last in the state of the response"
	}
	return "the answer depends on earlier calls, for example by variables that outlive a call, the iteration order of a map, or addresses or " +
		"string ids; keep what has to last in the state of the response"
}
