package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// explanation is the part of `sluice explain -o json` that the demo uses.
type explanation struct {
	Error string `json:"error"`
	Pools []struct {
		Family    string                `json:"family"`
		Pool      string                `json:"pool"`
		DecidedBy string                `json:"decidedBy"`
		Endpoints []endpointExplanation `json:"endpoints"`
	} `json:"pools"`
}

// endpointExplanation is the explanation of one endpoint.
type endpointExplanation struct {
	Address string  `json:"address"`
	Pod     string  `json:"pod"`
	Why     string  `json:"why"`
	Share   float64 `json:"share"`
	Steps   []struct {
		Plugin string `json:"plugin"`
		Reason string `json:"reason"`
	} `json:"steps"`
	Kernel []struct {
		Frontend string `json:"frontend"`
		Weight   int    `json:"weight"`
		Total    int    `json:"total"`
	} `json:"kernel"`
}

// Values of decidedBy: the policy, or its last good decision while it fails.
const (
	byPolicy = "policy"
	lastGood = "last good"
)

// decision is sluice's decision on a Service: the share of each Pod, who decided it, and what is programmed in the kernel.
type decision struct {
	by        string
	endpoints map[string]endpointExplanation // by Pod
}

// explain runs `sluice explain` in the namespace of the node.
func (d *demo) explain(ctx context.Context, svc model.Name) (*decision, error) {
	out, err := d.sluice.Run(ctx, "explain", "--socket", d.sluice.Socket, "-o", "json", "-n", svc.Namespace, svc.Name)
	if err != nil {
		return nil, err
	}
	var x explanation
	if err := json.Unmarshal(out, &x); err != nil {
		return nil, fmt.Errorf("sluice explain: %w", err)
	}
	for _, p := range x.Pools {
		if p.Family != model.IPv4.String() || p.Pool != "cluster" {
			continue
		}
		found := &decision{by: p.DecidedBy, endpoints: map[string]endpointExplanation{}}
		for _, e := range p.Endpoints {
			found.endpoints[e.Pod] = e
		}
		return found, nil
	}
	return nil, fmt.Errorf("sluice explain: Service %s has no IPv4 pool", svc)
}

// same reports whether two decisions have the same shares.
func (d *decision) same(e *decision) bool {
	if len(d.endpoints) != len(e.endpoints) {
		return false
	}
	for pod, a := range d.endpoints {
		if b, ok := e.endpoints[pod]; !ok || a.Share != b.Share {
			return false
		}
	}
	return true
}

// why joins the reasons of the plugins for a Pod, or returns that of the default rules if there are none.
func (d *decision) why(pod string) string {
	t := d.endpoints[pod]
	var reasons []string
	if d.by == lastGood {
		return t.Why + "; last good decision"
	}
	for _, s := range t.Steps {
		if s.Reason != "" {
			reasons = append(reasons, s.Reason)
		}
	}
	if len(reasons) == 0 {
		return t.Why
	}
	return strings.Join(reasons, "; ")
}

// checkKernel checks that the weights of each frontend in the kernel have the decided proportions.
func (d *decision) checkKernel() error {
	for pod, e := range d.endpoints {
		if len(e.Kernel) == 0 {
			return fmt.Errorf("%s: its weight in the kernel is unknown", pod)
		}
		for _, k := range e.Kernel {
			if k.Total == 0 || deviates(float64(k.Weight)/float64(k.Total), e.Share, 1<<40) {
				return fmt.Errorf("%s: sluice decided %.1f %%, the kernel has %[4]d of %[5]d for %[3]s", pod, 100*e.Share, k.Frontend, k.Weight, k.Total)
			}
		}
	}
	return nil
}
