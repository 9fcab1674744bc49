package dir

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkParse is one Service with a slice of ten endpoints, from YAML text to model values.
func BenchmarkParse(b *testing.B) {
	var text strings.Builder
	text.WriteString(`apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, labels: {app: web}}
spec:
  clusterIP: 10.96.0.1
  selector: {app: web}
  ports:
  - {name: http, port: 80, protocol: TCP, targetPort: 8080}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-x, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
`)
	for i := range 10 {
		fmt.Fprintf(&text, "- {addresses: [10.200.0.%d], conditions: {ready: true}, nodeName: n%d, zone: z%d}\n", i+1, i, i%3)
	}
	b.ReportAllocs()
	for b.Loop() {
		if docs, problem := parse([]byte(text.String()), false, nil); len(docs) != 2 || problem != nil {
			b.Fatal(docs, problem)
		}
	}
}
