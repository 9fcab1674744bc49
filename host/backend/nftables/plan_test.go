package nftables

import (
	"fmt"
	"strings"
)

const global = `global
  node-port-addresses  192.168.0.1 fd00:192::1
  pod-sources          10.244.0.0/16 fd00:10:244::/64
  service-cidrs        10.96.0.0/12 fd00:10:96::/112
  masquerade-mark      0x4000

`

// formatEndpoints writes endpoints of port 9000: "1*3 2" is p1 with weight 3 and p2 with weight 1.
func formatEndpoints(key, list string) string {
	var b strings.Builder
	for _, w := range strings.Fields(list) {
		n, weight, ok := strings.Cut(w, "*")
		if !ok {
			weight = "1"
		}
		addr := "10.244.0." + n
		if strings.Contains(key, "[") || strings.HasPrefix(key, "*6") {
			addr = "[fd00:10:244::" + n + "]"
		}
		fmt.Fprintf(&b, "      %s:9000  weight %s\n", addr, weight)
	}
	return b.String()
}

// frontend writes one frontend: "10.96.0.10:80/TCP ClusterIP masquerade=never" with endpoints as above, or a verdict.
func frontend(line, pool string) string {
	s := "  port http  " + line
	if !strings.Contains(line, "balance=") {
		s += " balance=random"
	}
	if pool == "reject" || pool == "drop" {
		return s + "\n    " + pool + "\n"
	}
	return s + "\n    forward\n" + formatEndpoints(line, pool)
}

func outsidePool(key, pool string) string {
	if pool == "reject" || pool == "drop" {
		return "    outside " + pool + "\n"
	}
	return "    outside forward\n" + formatEndpoints(key, pool)
}

func service(parts ...string) string { return global + "service shop/web\n" + strings.Join(parts, "") }
