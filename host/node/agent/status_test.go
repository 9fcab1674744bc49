package agent

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/node/agent/api"
	"github.com/sluice-proxy/sluice/host/node/agent/stateclient"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// nodeEvents are the Events about the node of an agent.
type nodeEvents struct {
	mu  sync.Mutex
	all []string // reason and note
}

func (e *nodeEvents) record(_ bool, reason, note string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, reason+" "+note)
}

// take returns the Events since the last call.
func (e *nodeEvents) take() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := e.all
	e.all = nil
	return out
}

// TestWhatIsNotInForceIsVisibleAsLongAsItLasts: a module and the configuration are replaced by broken ones, and repaired.
func TestWhatIsNotInForceIsVisibleAsLongAsItLasts(t *testing.T) {
	module := evilModule(t, "(func $evil (param i32 i32 i64) (result i64) (local.get 2))")
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(module))
	file := t.TempDir() + "/p.wasm"
	install := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(file+"~", content, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+"~", file); err != nil {
			t.Fatal(err)
		}
	}
	install(module)
	fields := "healthzBindAddress: ''\nmetricsBindAddress: " + freeAddress(t, 4) + "\nplugins: [{name: p, file: " + file + "}]\n" +
		"policies: [{name: q, plugins: [{name: p}]}]\ndefaultPolicy: q\n"
	r := newRig(t, fields)
	r.write("manifests/a.yaml", manifests)
	a, events := New(r.opts), &nodeEvents{}
	a.nodeEvent = events.record
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	inForce := func(failing []string, metrics ...string) (x *api.Explanation) {
		t.Helper()
		testenv.Eventually(t, "the condition", func() bool {
			text := page(t, "http://"+r.opts.Config.MetricsBindAddress+"/metrics", 200)
			var err error
			if x, err = stateclient.OnSocket(r.opts.Socket).Explain(ctx, api.Name{Namespace: "shop", Name: "web"}, false); err != nil || x.Node == nil {
				return false
			}
			problems, _ := x.Problems()
			return len(problems) == len(failing) && !slices.ContainsFunc(failing, func(want string) bool { return !strings.Contains(strings.Join(problems, "\n"), want) }) &&
				!slices.ContainsFunc(metrics, func(line string) bool { return !strings.Contains(text, line+"\n") })
		})
		return x
	}
	expectEvents := func(what string, want ...string) {
		t.Helper()
		var got []string
		testenv.Eventually(t, "the condition", func() bool { got = append(got, events.take()...); return len(got) >= len(want) })
		for i := range got {
			if len(got) != len(want) || !strings.Contains(got[i], want[i]) {
				t.Errorf("%s: Events %q, want %q", what, got, want)
				return
			}
		}
	}
	loaded := []string{`sluice_plugin_load_failed{plugin="p"} 0`, `sluice_plugin_info{digest="` + digest + `",plugin="p"} 1`, "sluice_config_last_reload_successful 1"}
	x := inForce(nil, loaded...)
	hash := x.Node.Configuration.Hash
	if hash == "" || x.Revision == "" || x.Node.Plugins[0].Digest != digest || x.Node.Policies[0] != (api.Policy{Name: "q", Revision: x.Revision}) {
		t.Errorf("%+v", x.Node)
	}
	inForce(nil, `sluice_policy_info{policy="q",revision="`+x.Revision+`"} 1`, `sluice_config_info{hash="`+hash+`"} 1`)

	install([]byte("broken"))
	inForce([]string{"; " + digest + " is in force: plugin p: "}, `sluice_plugin_load_failed{plugin="p"} 1`, loaded[1], loaded[2])
	expectEvents("broken module", kube.ReasonPluginLoadFailed+" "+digest+" is in force: plugin p: ")

	r.configure("nonsense: 1\n" + fields)
	inForce([]string{"hash " + hash + ", stays in force: ", "plugin p"},
		"sluice_config_last_reload_successful 0", `sluice_plugin_load_failed{plugin="p"} 1`, `sluice_config_info{hash="`+hash+`"} 1`)
	expectEvents("both", kube.ReasonConfigurationRejected)

	// While it lasts, the Events are repeated.
	tick := make(chan time.Time)
	reminders := make(chan struct{})
	reminding, stop := context.WithCancel(ctx)
	go func() { a.remind(reminding, tick); close(reminders) }()
	tick <- time.Now()
	expectEvents("reminder", kube.ReasonConfigurationRejected, kube.ReasonPluginLoadFailed)
	stop()
	<-reminders

	install(module)
	inForce([]string{"nonsense"}, append(loaded[:2:2], "sluice_config_last_reload_successful 0")...)
	expectEvents("module repaired", kube.ReasonPluginLoaded+" plugin p: "+digest+" is in force")
	r.configure("# the same\n" + fields + "\n\n")
	x = inForce(nil, loaded...)
	expectEvents("configuration repaired", kube.ReasonConfigurationApplied+" configuration is in force again, hash "+hash)
	if x.Node.Configuration.Hash != hash {
		t.Errorf("hash %s of the same configuration, before %s", x.Node.Configuration.Hash, hash)
	}
	r.configure(fields + "masqueradeAll: true\nbindings: [{namespaces: [shop], policy: q}, {namespaces: [shop], policy: q}]\n")
	testenv.Eventually(t, "the condition", func() bool {
		x = inForce(nil, loaded...)
		return x.Node.Configuration.Hash != hash
	})
	for _, want := range []string{
		`msg="the plugin is in force again" plugin=p digest=` + digest, `msg="the configuration is in force again" hash=` + hash,
		`msg="reloaded the configuration" hash=` + x.Node.Configuration.Hash, `msg="configuration warning" reason="bindings[1]: never applies`,
	} {
		testenv.Eventually(t, "the condition", func() bool { return strings.Contains(r.log.String(), want) }) // it is written after the rest
		if strings.Count(r.log.String(), want) != 1 {
			t.Errorf("the log does not have %s once:\n%s", want, r.log)
		}
	}
	r.configure(strings.Replace(fields, "[{name: p}]", "[{name: p, settings: {a: 1}}]", 1))
	inForce([]string{digest + " is in force: plugin p: policies[0].plugins[0].settings: "}, `sluice_plugin_load_failed{plugin="p"} 1`, loaded[1], "sluice_config_last_reload_successful 0")
	expectEvents("settings refused", kube.ReasonPluginLoadFailed)
	r.configure(fields)
	inForce(nil, loaded...)
	expectEvents("settings removed", kube.ReasonPluginLoaded)
	cancel()
	if err := r.wait(ended); err != nil {
		t.Error(err)
	}
}
