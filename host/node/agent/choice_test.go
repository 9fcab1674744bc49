package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
)

// TestAnnotationChoosesAmongAllowedPolicies: annotations and configuration are files that change while sluice runs, and it
// restarts.
func TestAnnotationChoosesAmongAllowedPolicies(t *testing.T) {
	const policies = "policies: [{name: a, panic: {belowPercent: 50}}, {name: b, panic: {belowPercent: 60}}, {name: secret, panic: {belowPercent: 70}}]\ndefaultPolicy: secret\n"
	metrics := "healthzBindAddress: ''\nmetricsBindAddress: " + freeAddress(t, 3) + "\n"
	allow := func(names string) string {
		return metrics + policies + "allow: [{namespaces: [shop], policies: [" + names + "]}]\n"
	}
	r := newRig(t, allow("a, b"))
	r.opts.Checkpoint = r.path("checkpoint.json")
	annotate := func(name string) {
		r.write("manifests/a.yaml", strings.Replace(manifests, "namespace: shop}", fmt.Sprintf("namespace: shop, annotations: {sluice.dev/policy: '%s'}}", name), 1))
	}
	expect := func(what, policy, problem string) {
		t.Helper()
		var x *api.Explanation
		testenv.Eventually(t, "the condition", func() (ok bool) {
			x, _ = stateclient.OnSocket(r.opts.Socket).Explain(t.Context(), api.Name{Namespace: "shop", Name: "web"}, false)
			return x != nil && x.Policy == policy && x.Annotation != nil && (x.Annotation.Error == "") == (problem == "") && strings.Contains(x.Annotation.Error, problem)
		})
		if problem != "" && (strings.Contains(strings.ReplaceAll(x.Annotation.Error, `"secret"`, ""), "secret") || x.Revision == "") {
			t.Errorf("%s: %+v", what, x.Annotation)
		}
	}
	annotate("a")
	stop := r.run()
	expect("chosen", "a", "")
	annotate("aa")
	expect("a typo", "a", `no policy "aa" (did you mean "a"?) (allowed: a, b); policy a, which it has chosen before, stays in force`)
	testenv.Eventually(t, "the condition", func() bool {
		return strings.Contains(page(t, "http://"+r.opts.Config.MetricsBindAddress+"/metrics", 200), `sluice_policy_annotations{state="not_found"} 1`)
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	stop = r.run()
	expect("a typo, over a restart", "a", "policy a, which it has chosen before")
	annotate("secret")
	expect("not allowed", "a", `may not choose policy "secret" (allowed: a, b); policy a`)
	r.configure(allow("b"))
	expect("withdrawn", "secret", "what applies without the annotation is in force")
	r.configure(allow("b, secret"))
	expect("allowed", "secret", "")
	if err := stop(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(r.log.String(), "the annotation of a Service chooses no policy"); n != 4 {
		t.Errorf("logged %d times:\n%s", n, r.log)
	}
}
