package agent

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// TestStopHasTimeToLookForKubeProxy: for as long as the kernel takes to list its objects, and no longer without a kube-proxy.
func TestStopHasTimeToLookForKubeProxy(t *testing.T) {
	r := newRig(t, "")
	extended := make(chan time.Duration, 10)
	r.opts.ExtendStop = func(by time.Duration) { extended <- by }
	if err := r.run()(); err != nil {
		t.Fatal(err)
	}
	close(extended)
	var got []time.Duration
	for by := range extended {
		got = append(got, by)
	}
	if want := []time.Duration{lookWithin, 0}; !slices.Equal(got, want) {
		t.Errorf("the time to stop was extended by %v, want %v", got, want)
	}
}

// TestLabelBeforeTheWatch: who labels the Node stops the agent at once, so the API server is asked; without an answer, what was
// last known counts.
func TestLabelBeforeTheWatch(t *testing.T) {
	r := newRig(t, "")
	r.write("manifests/n0.yaml", "apiVersion: v1\nkind: Node\nmetadata: {name: n0, labels: {a: b}}\n")
	a := New(r.opts)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	testenv.Eventually(t, "the first plan is in force", func() bool { return strings.Contains(r.log.String(), "synced all services") }, r.log.String)
	expect := func(when string, want bool) {
		t.Helper()
		if _, labeled, _ := a.successor(t.Context()); labeled != want {
			t.Errorf("%s: labeled %t, want %t\n%s", when, labeled, want, r.log)
		}
	}
	expect("the folder's Node", false)

	status := http.StatusOK
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/api/v1/nodes" || q.FormValue("fieldSelector") != "metadata.name=n0" || q.FormValue("resourceVersion") != "" {
			t.Errorf("request of %s", q.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
		list.Items = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n0", Labels: map[string]string{proxyLabel: proxyKubeProxy}}}}
		if err := json.NewEncoder(w).Encode(&list); err != nil {
			t.Error(err)
		}
	}))
	defer api.Close()
	client, err := kube.Connect(kube.Connection{Server: api.URL})
	if err != nil {
		t.Fatal(err)
	}
	a.opts.Client = client
	expect("the API server has a label", true)
	status = http.StatusInternalServerError
	expect("the API server fails", false)
	stop()
	if err := r.wait(ended); err != nil {
		t.Fatal(err)
	}
}
