package cluster_test

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// checkKinds checks that a source does without the kinds of sluice.dev and says so once, and sees kinds and objects that come
// later.
func checkKinds(t *testing.T, c *testcluster.Cluster, config string) {
	ctx := t.Context()
	r := &fixture{t: t, cluster: c, snap: model.NewSnapshot()}
	var err error
	r.client, err = kube.Connect(kube.Connection{Kubeconfig: config, Version: "test"})
	must(t, err)
	const soon = 20 * time.Millisecond
	s := kube.New(kube.Options{Client: r.client, Node: "n1", Log: slog.New(slog.NewTextHandler(r, nil)), Now: time.Now, After: func(d time.Duration) <-chan time.Time {
		if d > 3*time.Minute && d < 20*time.Minute { // minutes until the kinds are asked for again
			d = soon
		}
		return time.After(d)
	}})
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running, r.emit) }()
	defer func() {
		stop()
		must(t, <-ended)
	}()
	r.eventually("synced without the kinds", func() bool { return r.snap.Synced })
	// One line for the kinds of sluice.dev, and one for those of the Gateway API.
	if n := strings.Count(r.logged(), "continuing without"); n != 2 || strings.Count(r.logged(), "kinds of sluice.dev") != 1 || strings.Contains(r.logged(), "level=WARN") {
		t.Errorf("%d lines say that the kinds are missing:\n%s", n, r.logged())
	}
	if objects, problems, err := kube.LoadObjects(ctx, r.client); err != nil || len(objects) > 0 || len(problems) > 0 {
		t.Errorf("LoadObjects: %v, %v, %v", objects, problems, err)
	}
	dir, err := filepath.Abs("../../../../deploy/kustomize/crds")
	must(t, err)
	_, err = c.Kubectl(ctx, "", "apply", "--server-side", "-k", dir)
	must(t, err)
	_, err = c.Kubectl(ctx, "", "wait", "--for=condition=Established", "--timeout=60s", "crd", "-l", "app.kubernetes.io/name=sluice")
	must(t, err)
	const policy = `
apiVersion: sluice.dev/v1alpha1
kind: ServicePlugin
metadata: {name: spill, labels: {a: b}}
spec: {source: {type: Bundled, bundled: {name: locality}}}
---
apiVersion: sluice.dev/v1alpha1
kind: ClusterServicePolicy
metadata: {name: all}
spec: {plugins: [{name: spill}]}
---
apiVersion: sluice.dev/v1alpha1
kind: ServicePolicy
metadata: {name: web, namespace: shop}
spec: {targetRefs: [{name: s1}], plugins: [{name: spill, settings: {x: {z: 1}}}]}
`
	must(t, c.Apply(ctx, policy))
	mine := model.ObjectName{Kind: v1alpha1.ServicePolicyKind, Name: model.Name{Namespace: "shop", Name: "web"}}
	r.eventually("the objects", func() bool { return len(r.snap.Objects) == 3 })
	loaded, problems, err := kube.LoadObjects(ctx, r.client)
	if o := r.snap.Objects[mine].(*v1alpha1.ServicePolicy); err != nil || len(problems) > 0 || len(loaded) != 3 || string(o.Spec.Plugins[0].Settings.Raw) != `{"x":{"z":1}}` || o.CreationTimestamp.IsZero() || len(o.ManagedFields) > 0 {
		t.Errorf("%+v; loaded %v, %v, %v", o, loaded, problems, err)
	}
	r.takeChanges()
	_, err = c.Kubectl(ctx, "", "-n", "shop", "patch", "spol", "web", "--subresource=status", "--type=merge", "-p", `{"status":{"programmedNodes":"1/1"}}`)
	must(t, err)
	_, err = c.Kubectl(ctx, "", "-n", "shop", "patch", "spol", "web", "--type=merge", "-p", `{"spec":{"mode":"Shadow"}}`)
	must(t, err)
	r.eventually("the change behind the status", func() bool {
		o, _ := r.snap.Objects[mine].(*v1alpha1.ServicePolicy)
		return o != nil && o.Spec.Mode == v1alpha1.Shadow
	})
	if got := r.takeChanges(); len(got) != 1 {
		t.Errorf("a status is a change: %q", got)
	}
	_, err = c.Kubectl(ctx, "", "delete", "--wait", "-k", dir)
	must(t, err)
	r.eventually("the kinds are gone", func() bool { return len(r.snap.Objects) == 0 })
}
