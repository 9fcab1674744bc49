package main

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func newTestDemo() *demo {
	return &demo{screen: &screen{w: io.Discard, size: func() (int, int) { return plainWidth, 0 }}}
}

func TestJudge(t *testing.T) {
	decided := &decision{by: byPolicy, endpoints: map[string]endpointExplanation{
		"a": {Pod: "a", Share: .5}, "b": {Pod: "b", Share: .5}, "drained": {Pod: "drained"},
	}}
	want := map[string]float64{"a": .5, "b": .5, "drained": 0}
	for _, c := range []struct {
		name    string
		result  result
		want    map[string]float64
		problem string // "" for none
	}{
		{"as expected", result{counts: map[string]int{"a": 2240, "b": 2260}, total: 4500}, want, ""},
		{"a connection failed", result{counts: map[string]int{"a": 2240, "b": 2259}, total: 4499, failed: 1, first: errors.New("refused")}, want, "1 of 4500 connections failed"},
		{"a share deviates", result{counts: map[string]int{"a": 1900, "b": 2600}, total: 4500}, want, "χ²"},
		{"a drained endpoint was reached", result{counts: map[string]int{"a": 2240, "b": 2259, "drained": 1}, total: 4500}, want, "drained: expected 0.0 %"},
		{"an unknown server was reached", result{counts: map[string]int{"a": 2240, "b": 2259, "x": 1}, total: 4500}, want, "x, which is not an endpoint"},
		{"the decision is not what the cluster calls for", result{counts: map[string]int{"a": 2240, "b": 2260}, total: 4500},
			map[string]float64{"a": .6, "b": .4, "drained": 0}, "a: expected 60.0 %"},
	} {
		d := newTestDemo()
		d.judge(c.result, decided, c.want)
		all := strings.Join(d.problems, "\n")
		if c.problem == "" && all != "" || !strings.Contains(all, c.problem) {
			t.Errorf("%s: problems %q, want %q", c.name, all, c.problem)
		}
	}
}

func TestCheckKernelFindsADifferentKernel(t *testing.T) {
	e := endpointExplanation{Pod: "a", Share: .25}
	d := &decision{endpoints: map[string]endpointExplanation{"a": e}}
	if d.checkKernel() == nil {
		t.Error("a kernel that could not be read passed")
	}
	e.Kernel = append(e.Kernel, struct {
		Frontend string `json:"frontend"`
		Weight   int    `json:"weight"`
		Total    int    `json:"total"`
	}{"10.96.10.2:3550/TCP", 1, 4})
	d.endpoints["a"] = e
	if err := d.checkKernel(); err != nil {
		t.Errorf("1 of 4 for 25 %%: %v", err)
	}
	e.Kernel[0].Total = 3
	if d.checkKernel() == nil {
		t.Error("1 of 3 for 25 % passed")
	}
}
