package soak

import (
	"fmt"
	"strings"
)

// Objects of a tenant with rights in one namespace, as files. An API server accepts all of them.

// manyFrontends has a Service of 2,000 ports on 60 external addresses.
func manyFrontends() []string {
	var ports, external []string
	for i := range 2000 {
		ports = append(ports, fmt.Sprintf(`{"name": "p%d", "port": %d, "protocol": "TCP"}`, i, 1000+i))
	}
	for i := range 60 {
		external = append(external, fmt.Sprintf(`"203.0.113.%d"`, 1+i))
	}
	return []string{asList(service("tenant", "frontends", "10.99.0.1", externalIPs(external...), ports...))}
}

// contestedPorts has 1,000 Services that all want the same external address and ports.
func contestedPorts() []string {
	var all, ports []string
	for _, p := range []int{80, 443, 8080, 8443, 9090} {
		ports = append(ports, fmt.Sprintf(`{"name": "p%d", "port": %[1]d}`, p))
	}
	for i := range 1000 {
		all = append(all, service("tenant", fmt.Sprint("contest-", i), fmt.Sprintf("10.99.%d.%d", 1+i/250, i%250), externalIPs(`"203.0.113.99"`), ports...))
	}
	return []string{asList(all...)}
}

// manyEndpoints has a Service of 70,000 endpoints in 70 EndpointSlices.
func manyEndpoints() []string {
	files := []string{asList(service("tenant", "endpoints", "10.99.0.2", "", httpPort))}
	for i := range 70 {
		var list []string
		for j := range 1000 {
			list = append(list, fmt.Sprintf(`{"addresses": ["10.%d.%d.%d"], "conditions": {"ready": true}}`, 130+i, j/250, j%250))
		}
		files = append(files, asList(slice("tenant", "endpoints", fmt.Sprint("endpoints-", i), list)))
	}
	return files
}

// longNames has names of the greatest length.
func longNames() []string {
	var all []string
	for i := range 20 {
		name := fmt.Sprintf("n%02d%s", i, strings.Repeat("n", 60))
		all = append(all, service(strings.Repeat("t", 63), name, fmt.Sprint("10.99.0.", 10+i), "", `{"name": "`+strings.Repeat("p", 15)+`", "port": 80}`))
	}
	return []string{asList(all...)}
}

// forgedNames has zones and node names with terminal control sequences.
func forgedNames() []string {
	return []string{asList(service("tenant", "forged", "10.99.0.3", "", httpPort), slice("tenant", "forged", "forged-1", []string{
		`{"addresses": ["10.244.0.1"], "conditions": {"ready": true}, "nodeName": "n\u001b[2J", "zone": "z\u001b[31m\r\n10.0.0.1 forged"}`,
		`{"addresses": ["10.244.0.2"], "conditions": {"ready": true}, "nodeName": "\u202e", "zone": "\u0000"}`,
	}))}
}

// stolenAddresses claims addresses of another tenant's Services on used and unused ports, and endpoints that are no Pods.
func stolenAddresses() []string {
	external := externalIPs(fmt.Sprintf("%q", steadyAddr.Addr()), fmt.Sprintf("%q", toggleAddr.Addr()))
	return []string{asList(service("tenant", "thief", "10.99.0.4", external, httpPort, `{"name": "b", "port": 81}`, `{"name": "c", "port": 443}`),
		slice("tenant", "thief", "thief-1", []string{
			`{"addresses": ["0.0.0.1"], "conditions": {"ready": true}}`, `{"addresses": ["240.0.0.1"], "conditions": {"ready": true}}`,
			fmt.Sprintf(`{"addresses": [%q], "conditions": {"ready": true}}`, steadyAddr.Addr()),
		}))}
}

const httpPort = `{"name": "http", "port": 80}`

func externalIPs(quoted ...string) string {
	return `"externalIPs": [` + strings.Join(quoted, ", ") + "], "
}
