package cluster

import (
	"fmt"
	"strings"
	"testing"
)

// endpointLoad is an EndpointLoad of the Service web: utilizations by the Pods' addresses.
func (s *scene) endpointLoad(used map[*pod]string) string {
	s.Helper()
	var endpoints []string
	for p, value := range used {
		for _, a := range p.host.Addrs {
			endpoints = append(endpoints, fmt.Sprintf("{address: %q, values: {cpu_utilization: %q}}", a, value))
		}
	}
	uid := s.kubectl("get", "service", "web", "-o", "jsonpath={.metadata.uid}")
	return fmt.Sprintf("apiVersion: sluice.dev/v1alpha1\nkind: EndpointLoad\nmetadata: {name: web, ownerReferences: [{apiVersion: v1, kind: Service, name: web, uid: %s}]}\n"+
		"reporting: %d\nsilent: 0\nendpoints: [%s]\n", uid, len(endpoints), strings.Join(endpoints, ", "))
}

// TestReportedLoadMovesShares: an EndpointLoad at the API server changes the shares in the kernel, and its end, too. Connections
// stay.
func TestReportedLoadMovesShares(t *testing.T) {
	s := newScene(t, "load")
	s.withController() // which grants nodes to read EndpointLoads
	n1 := s.nodes["n1"]
	s.apply(web)
	a, b := s.pod("a", "web", n1, ""), s.pod("b", "web", n1, "")
	config := fmt.Sprintf("\nplugins: [{name: utilization, file: %s}]\npolicies: [{name: even, plugins: [{name: utilization, settings: {hold: 0s, interval: 2s, smoothingPercent: 50, "+
		"maxChangePercent: 100}}]}]\ndefaultPolicy: even\n", s.plugins["utilization"])
	r := s.run("n1", config)
	vip := s.vip("web", false)
	s.expectShare(n1.client, vip, 0.5, "b")
	open := s.converse(n1.client, vip)
	s.apply(s.endpointLoad(map[*pod]string{a: "0.2", b: "0.8"}))
	s.expectShare(n1.client, vip, 0.2, "b")
	s.eventually("explain", func() error {
		if text := r.explain("web"); !strings.Contains(text, "% of its share") {
			return fmt.Errorf("explain:\n%s", text)
		}
		return nil
	})
	s.kubectl("delete", "endpointload", "web")
	s.expectShare(n1.client, vip, 0.5, "b")
	open.expectAlive()
}
