package controller

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
)

const (
	near    = "{source: {type: Bundled, bundled: {name: near}}, use: {settings: [minEndpoints]}}"
	onWeb   = "{targetRefs: [{name: web}], plugins: [{name: near}]}"
	inForce = "Accepted=True/Accepted Programmed=True/Programmed"
)

// shop returns a lab with three nodes, a Service, and the plugin near.
func shop(t *testing.T) *lab {
	t.Helper()
	l := newLab(t)
	for _, n := range []string{"n1", "n2", "n3"} {
		l.apply("Node", n, "{zone: "+n+"}")
	}
	l.apply("Service", "shop/web", "{ports: [{name: http, port: 80}, {name: dns, port: 53}]}")
	l.apply("ServicePlugin", "near", near)
	l.resolved("near", nearModule())
	return l
}

// older applies a ServicePolicy that is older than shop/mine, which is applied again.
func (l *lab) older(spec string) {
	l.Helper()
	l.apply("ServicePolicy", "shop/older", spec)
	l.apply("ServicePolicy", "shop/mine", onWeb)
}

func (l *lab) all(plugins string, policies ...v1alpha1.PolicyReport) {
	for _, n := range []string{"n1", "n2", "n3"} {
		l.report(n, plugins, policies...)
	}
}

func is(name, reason, message string) v1alpha1.PolicyReport {
	namespace, base, ok := strings.Cut(name, "/")
	if !ok {
		namespace, base = "", name
	}
	return v1alpha1.PolicyReport{Namespace: namespace, Name: base, Reason: reason, Message: message}
}

// TestStatusOfPolicies: each state of a policy on three nodes.
func TestStatusOfPolicies(t *testing.T) {
	for _, c := range []struct {
		name       string
		with       func(*lab)
		nodes      string
		conditions string
		message    string // a part of that of the condition of
		of         string
	}{
		{"before a node has reported", func(*lab) {}, "0/0", "Accepted=True/Accepted Programmed=Unknown/NoNodes Reconciling=True/NoNodes", "", ""},
		{"in force", func(l *lab) { l.all("near") }, "3/3", inForce, "in force on 3 of 3 nodes", "Programmed"},
		{"a node has not read it", func(l *lab) {
			l.all("near")
			l.apply("ServicePolicy", "shop/mine", "{targetRefs: [{name: web}], plugins: [{name: near}], mode: Shadow}")
			l.report("n1", "near")
		}, "1/3", "Accepted=True/Accepted Programmed=False/Reconciling Reconciling=True/Reconciling", "2 have not reported it, such as n2", "Programmed"},
		{"a plugin that is not loaded on one", func(l *lab) { l.all("near"); l.report("n2", "near!DigestMismatch") }, "2/3",
			"Accepted=True/Accepted Programmed=False/PartiallyProgrammed Stalled=True/PluginNotLoaded", "PluginNotLoaded on 1, such as n2 (plugin near: DigestMismatch)", "Programmed"},
		{"failing on two", func(l *lab) {
			l.all("near", is("shop/mine", "Failing", "fuel"))
			l.report("n1", "near")
		}, "1/3", "Accepted=True/Accepted Programmed=False/PartiallyProgrammed Stalled=True/Failing", "Failing on 2, such as n2 (fuel)", "Programmed"},
		{"fallen back on one", func(l *lab) { l.all("near"); l.report("n3", "near", is("shop/mine", "FallenBack", "")) }, "2/3",
			"Accepted=True/Accepted Programmed=False/PartiallyProgrammed Stalled=True/FallenBack", "FallenBack on 1, such as n3", "Programmed"},
		{"a guard that has not begun", func(l *lab) { l.all("near", is("shop/mine", "Pending", "")) }, "0/3",
			"Accepted=True/Accepted Programmed=False/Reconciling Reconciling=True/Reconciling", "3 have not", "Programmed"},
		{"settings of another type", func(l *lab) {
			l.apply("ServicePolicy", "shop/mine", "{targetRefs: [{name: web}], plugins: [{name: near, settings: {minEndpoints: many}}]}")
			l.all("near")
		}, "0/3", "Accepted=False/Invalid Programmed=False/NotAccepted Stalled=True/Invalid", "spec.plugins[0].settings.minEndpoints", "Accepted"},
		{"settings that there are not", func(l *lab) {
			l.apply("ServicePlugin", "near", strings.Replace(near, "minEndpoints", "minEndpoint", 1))
			l.apply("ServicePolicy", "shop/mine", "{targetRefs: [{name: web}], plugins: [{name: near, settings: {minEndpoint: 3}}]}")
			l.all("near")
		}, "0/3", "Accepted=False/Invalid Programmed=False/NotAccepted Stalled=True/Invalid", `did you mean "minEndpoints"`, "Accepted"},
		{"settings that only nodes can check", func(l *lab) { l.all("near", is("shop/mine", "Invalid", "settings refused: x")) }, "0/3",
			"Accepted=False/Invalid Programmed=False/NotAccepted Stalled=True/Invalid", "node n1: settings refused: x", "Accepted"},
		{"a plugin that the namespace may not use", func(l *lab) {
			l.apply("ServicePlugin", "near", strings.Replace(near, "use: {", "use: {namespaces: [lab], ", 1))
			l.all("near")
		}, "0/3", "Accepted=False/NotAllowed Programmed=False/NotAccepted Stalled=True/NotAllowed", "no plugin", "Accepted"},
		{"no Service", func(l *lab) {
			l.apply("ServicePolicy", "shop/mine", "{targetRefs: [{name: wbe}], plugins: [{name: near}]}")
			l.all("near")
		}, "0/3", "Accepted=False/TargetNotFound Programmed=False/NotAccepted Stalled=True/TargetNotFound", "there is no Service wbe", "Accepted"},
		{"an older policy", func(l *lab) {
			l.older(onWeb)
			l.all("near")
		}, "0/3", "Accepted=False/Conflicted Programmed=False/NotAccepted Stalled=True/Conflicted", "ServicePolicy older is older", "Accepted"},
		{"an older policy on a part of the nodes", func(l *lab) {
			l.older("{targetRefs: [{name: web}], plugins: [{name: near}], rollout: {nodeSelector: {matchLabels: {zone: n2}}}}")
			l.all("near")
		}, "2/3", inForce, "in force on 2 of 3 nodes; it is for 2 of them", "Programmed"},
		{"an older policy that has fallen back on one", func(l *lab) {
			l.older("{targetRefs: [{name: web}], plugins: [{name: near}], guard: {failedPercent: 2}}")
			l.all("near")
			l.report("n3", "near", is("shop/older", "FallenBack", ""))
		}, "1/3", inForce, "in force on 1 of 3 nodes; it is for 1 of them", "Programmed"},
		{"an older shadow", func(l *lab) {
			l.older("{targetRefs: [{name: web}], plugins: [{name: near}], mode: Shadow}")
			l.all("near")
		}, "3/3", inForce, "in force on 3 of 3", "Programmed"},
		{"overridden", func(l *lab) {
			l.apply("ClusterServicePolicy", "all", "{plugins: [{name: near}], overrides: true}")
			l.all("near")
		}, "0/3", "Accepted=True/Accepted Programmed=False/Overridden", "ClusterServicePolicy all overrides it", "Programmed"},
		{"on a part of the nodes", func(l *lab) {
			l.apply("ServicePolicy", "shop/mine", "{targetRefs: [{name: web}], plugins: [{name: near}], rollout: {nodeSelector: {matchLabels: {zone: n2}}}}")
			l.all("near")
		}, "1/3", inForce, "in force on 1 of 3 nodes; it is for 1 of them", "Programmed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := shop(t)
			l.apply("ServicePolicy", "shop/mine", onWeb)
			c.with(l)
			l.sweep()
			s, conditions := l.status("shop/mine")
			if s.ProgrammedNodes != c.nodes || conditions != c.conditions {
				t.Errorf("nodes %s, %s\nwant %s, %s", s.ProgrammedNodes, conditions, c.nodes, c.conditions)
			}
			if got := l.message(s.Conditions, c.of); !strings.Contains(got, c.message) {
				t.Errorf("message %q, want %q", got, c.message)
			}
			if n := len(s.Ancestors); n != 1 || s.Ancestors[0].ControllerName != Name || s.Ancestors[0].AncestorRef.Name == "" {
				t.Errorf("ancestors %+v", s.Ancestors)
			}
			if again := l.sweep(); len(again) > 0 {
				t.Errorf("nothing has changed, and the status of %v has", again)
			}
		})
	}
}

// TestRaisedRolloutKeepsItsNodes: more nodes, and all of those before; the column has nodes in force of all nodes.
func TestRaisedRolloutKeepsItsNodes(t *testing.T) {
	l := newLab(t)
	l.apply("Service", "shop/web", "{ports: [{port: 80}]}")
	l.apply("ServicePlugin", "near", near)
	l.resolved("near", nearModule())
	for i := range 250 {
		l.apply("Node", fmt.Sprintf("n%03d", i), "{}")
	}
	had, most := 0, 0
	for _, percent := range []string{"5", "20", "50", "100"} {
		l.apply("ServicePolicy", "shop/mine", "{targetRefs: [{name: web}], plugins: [{name: near}], rollout: {percent: "+percent+"}}")
		for i := range 250 {
			l.report(fmt.Sprintf("n%03d", i), "near")
		}
		l.sweep()
		s, conditions := l.status("shop/mine")
		if conditions != inForce || int(s.Nodes.InForce) <= had || s.ProgrammedNodes != fmt.Sprintf("%d/250", s.Nodes.InForce) {
			t.Errorf("%s %%: %s, %s after %d", percent, s.ProgrammedNodes, conditions, had)
		}
		had, most = int(s.Nodes.InForce), max(most, int(s.Nodes.InForce))
	}
	if most != 250 {
		t.Errorf("%d nodes at 100 %%", most)
	}
}

// TestStatusOutlivesTheController: a new leader writes nothing, also after the status has raised the version of objects.
func TestStatusOutlivesTheController(t *testing.T) {
	l := shop(t)
	l.apply("ServicePolicy", "shop/mine", onWeb)
	l.all("near")
	if changed := l.sweep(); len(changed) != 2 {
		t.Fatalf("written: %v", changed)
	}
	next := newLab(t)
	next.caches = l.caches
	if changed := next.sweep(); len(changed) > 0 { // it has not read the module yet
		t.Errorf("a new leader writes the status of %v", changed)
	}
	next.resolved("near", nearModule())
	if changed := next.sweep(); len(changed) > 0 {
		t.Errorf("a new leader that has read the module writes the status of %v", changed)
	}
}

// TestStatusOfPlugins: digest, settings and counts, failures by reason with one node's name.
func TestStatusOfPlugins(t *testing.T) {
	l := shop(t)
	of := func() *v1alpha1.ServicePluginStatus {
		o, _, _ := l.plugins.GetStore().GetByKey("near")
		return &o.(*v1alpha1.ServicePlugin).Status
	}
	l.all("")
	l.sweep()
	if got := short(of().Conditions); got != "Accepted=True/Accepted Resolved=True/Resolved Programmed=Unknown/Unused" || of().Digest != "sha256:near" || len(of().Settings) != 1 {
		t.Errorf("unused: %s %+v", got, of())
	}
	l.apply("ServicePolicy", "shop/mine", onWeb)
	l.all("near!PullFailed")
	l.report("n2", "near")
	l.sweep()
	want := v1alpha1.Failure{Reason: "PullFailed", Count: 2, Node: "n1", Message: "plugin near: PullFailed"}
	if s := of(); s.LoadedNodes != "1/3" || len(s.Failures) != 1 || s.Failures[0] != want || !strings.Contains(short(s.Conditions), "Programmed=False/PartiallyProgrammed") {
		t.Errorf("failing on two: %s %+v", short(s.Conditions), s)
	}
	l.all("near")
	l.sweep()
	if s := of(); s.LoadedNodes != "3/3" || !strings.Contains(short(s.Conditions), "Programmed=True/Programmed") {
		t.Errorf("loaded: %s %+v", short(s.Conditions), s)
	}
	l.resolved("near", &module{err: fmt.Errorf("no signature"), reason: "SignatureInvalid"})
	l.sweep()
	if s := of(); !strings.Contains(short(s.Conditions), "Resolved=False/SignatureInvalid") {
		t.Errorf("not signed: %s", short(s.Conditions))
	}
}

// TestConflictsOfTargets: only the target that another policy has is conflicted.
func TestConflictsOfTargets(t *testing.T) {
	l := shop(t)
	l.apply("ServicePolicy", "shop/older", "{targetRefs: [{name: web, sectionName: http}], plugins: [{name: near}]}")
	l.apply("ServicePolicy", "shop/mine", "{targetRefs: [{name: web, sectionName: http}, {name: web, sectionName: dns}, {name: web, sectionName: none}], plugins: [{name: near}]}")
	l.all("near")
	l.sweep()
	s, conditions := l.status("shop/mine")
	var got []string
	for _, a := range s.Ancestors {
		got = append(got, a.AncestorRef.SectionName+" "+short(a.Conditions))
	}
	want := "http Accepted=False/Conflicted, dns Accepted=True/Accepted, none Accepted=False/TargetNotFound"
	if strings.Join(got, ", ") != want || conditions != inForce {
		t.Errorf("%v, %s", got, conditions)
	}
}

// TestStatusAtScale: with 10,000 policies and 5,000 reports the controller takes less than 200 MiB, and a sweep looks at each
// node and each policy, and not at all pairs.
func TestStatusAtScale(t *testing.T) {
	policies, nodes := 10_000, 5_000
	if testing.Short() {
		policies, nodes = 1_000, 500
	}
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	l := newLab(t)
	l.apply("ServicePlugin", "near", near)
	l.resolved("near", nearModule())
	for i := range policies {
		l.apply("Service", fmt.Sprintf("shop/s%d", i), "{ports: [{port: 80}]}")
		l.apply("ServicePolicy", fmt.Sprintf("shop/p%d", i), fmt.Sprintf("{targetRefs: [{name: s%d}], plugins: [{name: near, settings: {minEndpoints: 3}}]}", i))
	}
	for i := range nodes {
		l.apply("Node", fmt.Sprintf("n%d", i), "{zone: a}")
		l.report(fmt.Sprintf("n%d", i), "near")
	}
	if changed := l.sweep(); len(changed) != policies+1 {
		t.Errorf("%d statuses, want %d", len(changed), policies+1)
	}
	if s, conditions := l.status("shop/p7"); conditions != inForce || s.ProgrammedNodes != fmt.Sprintf("%d/%d", nodes, nodes) {
		t.Errorf("%s %s", s.ProgrammedNodes, conditions)
	}
	begin := time.Now()
	if again := l.sweep(); len(again) > 0 {
		t.Errorf("%d statuses without a change", len(again))
	}
	took := time.Since(begin)
	used := (heap() - before) >> 20
	t.Logf("%d policies, %d reports: %d MiB, a sweep takes %s", policies, nodes, used, took.Round(time.Millisecond))
	if used > 200 {
		t.Errorf("%d MiB", used)
	}
	runtime.KeepAlive(l)
}

// TestHostileObjects: a policy with the name of one that is gone has a status of its own; reports about what is not there, or
// from a Node that is gone, change nothing; and a tenant learns of plugins only what its policy needs.
func TestHostileObjects(t *testing.T) {
	l := shop(t)
	l.apply("ServicePolicy", "shop/mine", onWeb)
	l.all("near", is("shop/mine", "Failing", "out of fuel"))
	l.sweep()
	_ = l.policies.GetStore().Delete(&v1alpha1.ServicePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "mine"}})
	l.apply("ServicePolicy", "shop/mine", onWeb) // reports are about the one before
	l.sweep()
	if s, conditions := l.status("shop/mine"); s.ProgrammedNodes != "0/3" || len(s.Failures) > 0 || !strings.Contains(conditions, "Programmed=False/Reconciling") {
		t.Errorf("made again: %s %s %+v", s.ProgrammedNodes, conditions, s.Failures)
	}
	many := []v1alpha1.PolicyReport{}
	for i := range 256 {
		many = append(many, is(fmt.Sprintf("lab/none%d", i), "Failing", strings.Repeat("x", 256)))
	}
	l.all("near", many...)
	l.report("gone", "near!PullFailed", is("shop/mine", "Failing", "of no Node"))
	l.sweep()
	if s, conditions := l.status("shop/mine"); s.ProgrammedNodes != "3/3" || conditions != inForce {
		t.Errorf("reports about others: %s %s", s.ProgrammedNodes, conditions)
	}
	for _, n := range []string{"n1", "n2", "n3"} {
		l.report(n, "near!PullFailed")
		o, _, _ := l.reports.GetStore().GetByKey(n)
		o.(*v1alpha1.NodeReport).Report.Plugins[0].Message = "registry.internal: with the credentials in /etc/secret"
	}
	l.sweep()
	s, _ := l.status("shop/mine")
	if text := fmt.Sprintf("%+v", s); strings.Contains(text, "secret") || strings.Contains(text, "registry.internal") || !strings.Contains(text, "plugin near: PullFailed") {
		t.Errorf("a tenant reads %s", text)
	}
}
