package main

import (
	"time"

	"github.com/sluice-proxy/sluice/host/core/eligibility"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/sdk/abi"
	"github.com/sluice-proxy/sluice/sdk/tck/hosts"
)

// enforce decides about the Service port of a request with the policy engine, whose only plugin is p, and returns the weights
// that are in force.
func (p *plugin) enforce(q *abi.Request) *hosts.Answer {
	if p.evaluator == nil {
		p.evaluator = policy.NewEvaluator(func(string) (policy.Plugin, error) { return p.Plugin, nil })
		p.policy = &policy.Policy{Name: "tck", Steps: []policy.Step{{Plugin: "guest", Settings: p.settings}}, OnFailure: policy.LastGood}
	}
	name := model.PortName{Service: model.Name{Namespace: q.Namespace, Name: q.Service}, Port: q.Port, Protocol: model.Protocol(q.Protocol)}
	port := &eligibility.Port{Name: name, Spec: model.ServicePort{Name: q.Port, Protocol: name.Protocol, Port: q.PortNumber}, Family: model.Family(q.Family), UsesCluster: true}
	for _, e := range q.Endpoints {
		has := func(condition uint32) bool { return e.Conditions&condition != 0 }
		port.Endpoints = append(port.Endpoints, eligibility.Endpoint{Addr: e.Addr, Node: e.Node, Zone: e.Zone, Pod: e.Pod, Ready: has(abi.Ready), Serving: has(abi.Serving),
			Terminating: has(abi.Terminating), Local: has(abi.Local), InCluster: has(abi.Chosen)})
	}
	svc := &model.Service{Name: name.Service, Affinity: time.Duration(q.SessionAffinityMS) * time.Millisecond}
	d, _ := p.evaluator.DecideNow(p.policy, &policy.Input{Service: svc, Port: port, Node: q.Node, Zone: q.Zone}, time.UnixMilli(q.Now))
	answer := &hosts.Answer{Weights: d.Weights}
	if d.Err != nil {
		answer.Error = d.Err.Error()
	}
	return answer
}
