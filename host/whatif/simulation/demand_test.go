package simulation

import (
	"math"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

func TestDemandRules(t *testing.T) {
	d, err := ParseDemand("demand", []byte(`
cluster * 12           # of all Nodes
cluster shop/* 24
zone a shop/web 10
zone a shop/web:http 20
node n00 shop/web 7200/1h
`))
	if err != nil {
		t.Fatal(err)
	}
	c := shop(6, 3) // two Nodes in each zone
	of := newDemandOf(d, c.Nodes)
	port := func(service, name string) model.PortName {
		ns, service, _ := strings.Cut(service, "/")
		return model.PortName{Service: model.Name{Namespace: ns, Name: service}, Port: name, Protocol: model.TCP}
	}
	for _, x := range []struct {
		node string
		port model.PortName
		want float64
	}{
		{"n00", port("shop/web", "http"), 2},
		{"n03", port("shop/web", "http"), 10},
		{"n03", port("shop/web", "grpc"), 5},
		{"n01", port("shop/web", "http"), 4},
		{"n01", port("other/web", "http"), 2},
	} {
		if got := of.rate(c.Nodes[x.node], x.port, 80); got != x.want {
			t.Errorf("%s to %s: %g, want %g", x.node, x.port, got, x.want)
		}
	}
	if unknown := of.unknown(c); unknown != nil {
		t.Errorf("unknown: %v", unknown)
	}
	c.Nodes["n00"].MilliCPU = 16000
	cpu := newDemandOf(CPUDemand(3), c.Nodes)
	if got := cpu.rate(c.Nodes["n00"], port("shop/web", "http"), 80); math.Abs(got-8) > 1e-9 { // 16 of 36 cores of six Nodes
		t.Errorf("by CPU: %g, want 8", got)
	}
}

func TestDemandErrors(t *testing.T) {
	for text, want := range map[string]string{
		"cluster *":                "demand:1: want cluster SERVICE RATE",
		"\nrack r1 * 3":            "demand:2: want cluster SERVICE RATE",
		"cluster web 3":            `demand:1: "web": want NAMESPACE/NAME:PORT`,
		"cluster shop/*:http 3":    `demand:1: "shop/*:http": want`,
		"cluster * -1":             `demand:1: "-1" is not a rate`,
		"cluster * NaN":            `demand:1: "NaN" is not a rate`,
		"cluster * 1e30":           `demand:1: "1e30" is not a rate`,
		"cluster * 10/0s":          `demand:1: "10/0s" is not a rate`,
		"cluster * 1\ncluster * 2": "demand:2: cluster has a rule for * above",
	} {
		if _, err := ParseDemand("demand", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func FuzzParseDemand(f *testing.F) {
	f.Add([]byte("cluster * 12\neach shop/a 1\nzone a shop/web:http 120000/1h\nnode n1 shop/* 0.5 # x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := ParseDemand("demand", text)
		if err != nil {
			return
		}
		of := newDemandOf(d, shop(3, 1).Nodes)
		if r := of.rate(&model.Node{Name: "n1", Zone: "a"}, model.PortName{Service: model.Name{Namespace: "shop", Name: "web"}, Port: "http"}, 80); !(r >= 0) || r > maxRate {
			t.Errorf("rate %g", r)
		}
	})
}

func TestCapacity(t *testing.T) {
	pod := &model.Pod{MilliCPU: 2500, Labels: map[string]string{"size": "3"}, Annotations: map[string]string{"a.b/c": "0.5", "bad": "x"}}
	for text, want := range map[string]float64{"equal": 1, "request:cpu": 2.5, "label:size": 3, "annotation:a.b/c": 0.5, "annotation:bad": 1, "label:none": 1} {
		c, err := ParseCapacity(text)
		if err != nil || c.of(pod) != want || c.of(nil) != 1 {
			t.Errorf("%s: %g %v, want %g", text, c.of(pod), err, want)
		}
	}
	for _, text := range []string{"", "cpu", "service-label:x", "label:", "label:a\nlabel:b"} {
		if c, err := ParseCapacity(text); err == nil {
			t.Errorf("%q: %v", text, c)
		}
	}
}
