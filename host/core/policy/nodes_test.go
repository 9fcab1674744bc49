package policy

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// among reports whether a node matches by percent.
func among(permille int, policy, node string) bool {
	in, _ := (&Nodes{Permille: permille}).match(policy, &Node{Name: node})
	return in
}

// TestNodesByPercentAreEven: of 5,000 nodes, as many match as asked for, within four standard deviations, for each form of names.
func TestNodesByPercentAreEven(t *testing.T) {
	const nodes = 5000
	for _, form := range []string{"node-%d", "ip-10-0-%d.eu-west-1.compute.internal", "%d", "gke-prod-pool-1-%08x"} {
		for _, permille := range []int{1, 10, 50, 200, 500, 1000} {
			n := 0
			for i := range nodes {
				if among(permille, "zones", fmt.Sprintf(form, i)) {
					n++
				}
			}
			p := float64(permille) / 1000
			if mean, deviation := nodes*p, math.Sqrt(nodes*p*(1-p)); math.Abs(float64(n)-mean) > 4*deviation {
				t.Errorf("%s: %d of %d nodes match %d permille", form, n, nodes, permille)
			}
		}
	}
}

// TestNodesStayWhenThePercentageIsRaised, and other policies have other nodes.
func TestNodesStayWhenThePercentageIsRaised(t *testing.T) {
	both, of := 0, 0
	for i := range 1000 {
		name, before := fmt.Sprint("node-", i), false
		for permille := 1; permille <= 1000; permille++ {
			now := among(permille, "zones", name)
			if before && !now {
				t.Fatalf("%s matches at %d permille and not at %d", name, permille-1, permille)
			}
			before = now
		}
		if !before {
			t.Fatalf("%s is not among all nodes", name)
		}
		if among(200, "zones", name) {
			of++
			if among(200, "canary", name) {
				both++
			}
		}
	}
	if both < of/10 || both > of*3/10 {
		t.Errorf("%d of the %d nodes of a policy are those of another one, want a fifth", both, of)
	}
}

// TestNodesArePinned: nodes of other versions of sluice choose the same ones.
func TestNodesArePinned(t *testing.T) {
	for node, want := range map[string]int{"node-1": 2293, "node-2": 186, "": 7098} {
		if got := position("zones", node); got != want {
			t.Errorf("%q: position %d, want %d", node, got, want)
		}
	}
}

func TestBindingsThatDoNotApplyOnTheNodeAreSkipped(t *testing.T) {
	in, out := "", ""
	for i := 0; in == "" || out == ""; i++ {
		if name := fmt.Sprint("node-", i); among(50, "b", name) {
			in = name
		} else {
			out = name
		}
	}
	db := Selector{{Key: "pool", Op: In, Values: []string{"db"}}}
	notDB := Selector{{Key: "pool", Op: NotIn, Values: []string{"db"}}}
	isDB := map[string]string{"pool": "db"}
	for name, c := range map[string]struct {
		nodes Nodes
		node  Node
		want  string
		why   string
	}{
		"among the percent":            {Nodes{Permille: 50}, Node{Name: in}, "b", "it is among the 5 % of nodes"},
		"not among the percent":        {Nodes{Permille: 50}, Node{Name: out}, "a", "it is not among the 5 % of nodes"},
		"labels match":                 {Nodes{Selector: db}, Node{Name: out, Labels: isDB, Known: true}, "b", "its labels match"},
		"labels do not match":          {Nodes{Selector: db}, Node{Name: in, Known: true}, "a", "its labels do not match"},
		"absent label":                 {Nodes{Selector: notDB}, Node{Name: in, Known: true}, "b", "its labels match"},
		"unknown labels":               {Nodes{Selector: notDB}, Node{Name: in}, "a", "its labels are not known"},
		"both match":                   {Nodes{50, db}, Node{in, isDB, true}, "b", "it is among the 5 % of nodes, and its labels match"},
		"only the labels match":        {Nodes{50, db}, Node{out, isDB, true}, "a", "it is not among the 5 % of nodes"},
		"only the percentage matches":  {Nodes{50, db}, Node{in, nil, true}, "a", "it is among the 5 % of nodes, and its labels do not match"},
		"a thousandth, not among them": {Nodes{Permille: 1}, Node{Name: out}, "a", "it is not among the 0.1 % of nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			web := Selector{{Key: "app", Op: In, Values: []string{"web"}}}
			set := &Set{
				Policies: map[string]*Policy{"a": {Name: "a"}, "b": {Name: "b"}},
				Bindings: []Binding{{Selector: web, Nodes: c.nodes, Policy: "b"}, {Selector: web, Policy: "a"}, {Nodes: c.nodes, Policy: "b"}},
			}
			svc := &model.Service{Labels: map[string]string{"app": "web"}}
			if p, _ := set.For(svc, "", ""); p.Name != "a" {
				t.Errorf("before the node is known: policy %s", p.Name)
			}
			set.SetNode(c.node)
			if p, err := set.For(svc, "", ""); p.Name != c.want || err != nil {
				t.Errorf("policy %s, %v, want %s", p.Name, err, c.want)
			}
			got := set.NodeBindings(svc)
			if len(got) != 1 || got[0].Why != c.why || got[0].Applies != (c.want == "b") || got[0].Node != c.node.Name {
				t.Errorf("got %+v, want %s", got, c.why)
			}
			if n := len(set.NodeBindings(nil)); n != 2 {
				t.Errorf("%d bindings with nodes", n)
			}
			if n := len(set.NodeBindings(&model.Service{})); n != 1 {
				t.Errorf("%d bindings with nodes for a Service that only the last one matches", n)
			}
		})
	}
}

func TestSetNodeReportsWhetherOtherBindingsApply(t *testing.T) {
	set := &Set{Bindings: []Binding{{Policy: "a"}, {Policy: "b", Nodes: Nodes{Selector: Selector{{Key: "pool", Op: Exists}}}}}}
	for i, c := range []struct {
		labels  map[string]string
		changed bool
	}{
		{nil, true}, {map[string]string{"zone": "a"}, false}, {map[string]string{"pool": "x"}, true}, {map[string]string{"pool": "y"}, false}, {nil, true},
	} {
		if changed := set.SetNode(Node{Name: "n1", Labels: c.labels, Known: true}); changed != c.changed {
			t.Errorf("%d: changed %t", i, changed)
		}
	}
}

// TestBindingNodesAreThoseThatMatch: of 200 Nodes, those on which each one finds that the binding applies, and none of a label
// that no Node has.
func TestBindingNodesAreThoseThatMatch(t *testing.T) {
	set := &Set{Policies: map[string]*Policy{"p": {Name: "p"}}, Bindings: []Binding{
		{Policy: "p"}, {Policy: "p", Nodes: Nodes{Permille: 250}}, {Policy: "p", Nodes: Nodes{Selector: Selector{{Key: "pool", Op: Exists}}}},
	}}
	nodes := map[string]*model.Node{}
	for i := range 200 {
		name := fmt.Sprintf("n%03d", i)
		nodes[name] = &model.Node{Name: name}
	}
	got := set.BindingNodes(nodes)
	if len(got) != 2 || got[0].Index != 1 || len(got[1].Names) > 0 || got[1].Known != 200 {
		t.Fatalf("%+v", got)
	}
	var want []string
	for i := range 200 {
		name := fmt.Sprintf("n%03d", i)
		set.SetNode(Node{Name: name, Known: true})
		if set.applies(1) {
			want = append(want, name)
		}
	}
	if !slices.Equal(got[0].Names, want) || len(want) < 30 || len(want) > 70 {
		t.Errorf("%d Nodes %v, want %v", len(got[0].Names), got[0].Names, want)
	}
	if text := got[0].String(); !strings.HasPrefix(text, fmt.Sprintf("bindings[1] (policy p) applies on %d of 200 Nodes: ", len(want))) || !strings.Contains(text, "more") {
		t.Errorf("text %q", text)
	}
}
