package policy

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

func (e *chains) decide(m *poolState, in *Input, now time.Time, of pass) (Decision, time.Time) {
	d := Decision{Weights: defaultWeights(in), Policy: m.name}
	c := &m.enforced
	p := c.policy
	if len(p.Steps) == 0 {
		if e.stopWaiting(c); p.Panic.Below > 0 {
			d.Origin = FromChain
		}
		c.lastGood = nil
		return d, time.Time{}
	}
	if !anyPositive(d.Weights) {
		e.stopWaiting(c)
		return d, time.Time{}
	}
	answer, requeueAt, err := e.evaluate(c, &m.times, in, now, &d.Evaluation, of)
	if err == errAsked {
		d.Err = err
		return d, requeueAt
	}
	if err != nil {
		d.Err = fmt.Errorf("policy %s: %s: %w", p.Name, keyOf(in), err)
		if p.OnFailure == LastGood || errors.Is(err, ErrPending) {
			c.keepLastGood(in, &d)
		}
		return d, requeueAt
	}
	c.lastGood, d.Origin = answer, FromChain
	answer.enforce(answer.weights(in), in, &d)
	return d, requeueAt
}

// keepLastGood applies the last good decision, if there is one, to the current endpoints.
func (c *chain) keepLastGood(in *Input, d *Decision) {
	if w := c.lastGood.applyTo(in, d.Weights); w != nil {
		d.Origin = FromLastGood
		c.lastGood.enforce(w, in, d)
	}
}

// enforce makes an answer with these weights the decision.
func (g *lastGood) enforce(weights []uint16, in *Input, d *Decision) {
	d.Weights, d.ResetAt, d.KeepDraining, d.Balance = weights, g.resets(in), g.draining(in), g.balance
	d.Sheds = g.shedsOf(in)
}

// defaultWeights returns the weights of the default rules: 1 for each chosen endpoint.
func defaultWeights(in *Input) []uint16 {
	w := make([]uint16, len(in.Port.Endpoints))
	for i := range in.Port.Endpoints {
		if chosen(in, i) {
			w[i] = 1
		}
	}
	return w
}

func chosen(in *Input, i int) bool {
	if in.Pool == abi.PoolLocal {
		return in.Port.Endpoints[i].InLocal
	}
	return in.Port.Endpoints[i].InCluster
}

func anyPositive(weights []uint16) bool {
	return slices.ContainsFunc(weights, func(w uint16) bool { return w > 0 })
}
