package cluster_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// recordingProxy is a reverse proxy to the API server that records exchanges.
type recordingProxy struct {
	*httptest.Server
	mu   sync.Mutex
	seen []exchange
}

type exchange struct {
	what        string // method, resource, watch or not
	token       string
	code        int
	sent, given string // types of content
}

func newRecordingProxy(t *testing.T, c *testcluster.Cluster) *recordingProxy {
	t.Helper()
	ca, err := os.ReadFile(c.CAFile())
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	to, err := url.Parse(c.Config.Host)
	must(t, err)
	tap := &recordingProxy{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true},
		FlushInterval: -1,
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ModifyResponse: func(r *http.Response) error {
			q := r.Request
			what := q.Method + " " + q.URL.Path[strings.LastIndexByte(q.URL.Path, '/')+1:]
			if q.URL.Query().Get("watch") != "" {
				what += " watch"
			}
			if strings.Contains(q.Header.Get("Accept"), "as=PartialObjectMetadataList") {
				what += " metadata"
			}
			tap.mu.Lock()
			defer tap.mu.Unlock()
			tap.seen = append(tap.seen, exchange{what, strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer "), r.StatusCode,
				q.Header.Get("Content-Type"), r.Header.Get("Content-Type")})
			return nil
		},
	}
	tap.Server = httptest.NewTLSServer(proxy) // client-go does not send tokens over plain HTTP
	t.Cleanup(func() {
		tap.CloseClientConnections()
		tap.Close()
	})
	return tap
}

// exchanges returns the exchanges since the last call.
func (p *recordingProxy) exchanges() []exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := p.seen
	p.seen = nil
	return out
}

// proxiedSource is a source that reaches the API server through a recordingProxy, with a token in a file.
type proxiedSource struct {
	*fixture
	*recordingProxy
	file, old, renewed string // the token's file, what was in it, what is
	secret             string // that the old one is bound to
	rotated            time.Time
}

// newProxiedSource starts the source and replaces its token after the initial sync.
func newProxiedSource(t *testing.T, c *testcluster.Cluster) *proxiedSource {
	t.Helper()
	ctx := t.Context()
	secret, err := c.Client.CoreV1().Secrets("kube-system").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "of-a-token"}}, metav1.CreateOptions{})
	must(t, err)
	bound, err := c.Client.CoreV1().ServiceAccounts("kube-system").CreateToken(ctx, "sluice", &authv1.TokenRequest{Spec: authv1.TokenRequestSpec{
		BoundObjectRef: &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID},
	}}, metav1.CreateOptions{})
	must(t, err)
	p := &proxiedSource{fixture: &fixture{t: t, cluster: c, snap: model.NewSnapshot()}, recordingProxy: newRecordingProxy(t, c), file: filepath.Join(t.TempDir(), "token"),
		old: bound.Status.Token, secret: secret.Name}
	p.renewed, err = c.Token(ctx, "kube-system", "sluice")
	must(t, err)
	must(t, os.WriteFile(p.file, []byte(p.old), 0o600))
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.Certificate().Raw})
	config := clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"lab": {Server: p.URL, CertificateAuthorityData: certificate}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"sluice": {TokenFile: p.file}},
		Contexts:  map[string]*clientcmdapi.Context{"lab": {Cluster: "lab", AuthInfo: "sluice"}}, CurrentContext: "lab",
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(config, kubeconfig))
	p.client, err = kube.Connect(kube.Connection{Kubeconfig: kubeconfig, Version: "test"})
	must(t, err)
	s := kube.New(kube.Options{Client: p.client, Node: "n1", Log: slog.New(slog.NewTextHandler(p.fixture, nil)), Now: time.Now, After: time.After})
	s.SetNeeds(onAnyNode(func(*model.Service) kube.Needs { return kube.Needs{Nodes: true} }))
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running, p.emit) }()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
	})
	p.eventually("synced", func() bool { return p.snap.Synced && !p.snap.NodesPartial })
	next := p.file + ".new" // as the kubelet does: by renaming, while the old token is still valid
	must(t, os.WriteFile(next, []byte(p.renewed), 0o600))
	must(t, os.Rename(next, p.file))
	p.rotated = time.Now()
	return p
}

// checkProtobuf checks the encoding of all exchanges so far.
func (p *proxiedSource) checkProtobuf(t *testing.T) {
	const protobuf = "application/vnd.kubernetes.protobuf"
	_, _, err := kube.Load(t.Context(), p.client, "n1", onAnyNode(func(*model.Service) kube.Needs { return kube.Needs{Nodes: true} }))
	must(t, err)
	rec := kube.NewEventRecorder(p.client, "n1", slog.New(slog.NewTextHandler(p.fixture, nil)), time.Now, time.After)
	rec.NodeEvent(true, kube.ReasonFailedToStartMetricServer, "port 10249: taken")
	running, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { rec.Run(running) })
	defer func() { stop(); wg.Wait() }()
	var seen []exchange
	p.eventually("an Event", func() bool {
		seen = append(seen, p.exchanges()...)
		return slices.ContainsFunc(seen, func(e exchange) bool { return e.what == "POST events" })
	})
	missing := map[string]bool{}
	for _, kind := range []string{"services", "endpointslices", "nodes", "servicecidrs"} {
		missing["GET "+kind+" watch"], missing["GET "+kind] = true, true
	}
	missing["POST events"] = true
	for _, e := range seen {
		if strings.Contains(e.what, "serviceplugins") || strings.Contains(e.what, "servicepolicies") || strings.Contains(e.what, "routes") {
			continue // custom resources have no other encoding than JSON
		}
		delete(missing, e.what)
		if want := protobuf; e.given != want && e.given != want+";stream=watch" || strings.HasSuffix(e.what, " watch") != strings.HasSuffix(e.given, ";stream=watch") {
			t.Errorf("%s: %d, the answer is %s", e.what, e.code, e.given)
		}
		if strings.HasPrefix(e.what, "POST") && e.sent != protobuf {
			t.Errorf("%s: sent as %s", e.what, e.sent)
		}
	}
	if len(missing) > 0 {
		t.Errorf("not seen: %v", missing)
	}
}

// checkTokenRenewal runs last: a client reads its token file once a minute.
func (p *proxiedSource) checkTokenRenewal(t *testing.T) {
	time.Sleep(time.Until(p.rotated.Add(time.Minute))) // time passes: the token is read again
	p.exchanges()
	p.CloseClientConnections()
	p.waitForWatches(t, p.renewed)
	must(t, p.cluster.Client.CoreV1().Secrets("kube-system").Delete(t.Context(), p.secret, metav1.DeleteOptions{}))
	p.CloseClientConnections()
	p.waitForWatches(t, p.renewed)
	_, err := p.cluster.Client.CoreV1().Services("shop").Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "with-another-token"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	must(t, err)
	p.eventually("a change", func() bool { return p.snap.Services[model.Name{Namespace: "shop", Name: "with-another-token"}] != nil })
}

// waitForWatches waits until the watches are re-established, all with the given token.
func (p *proxiedSource) waitForWatches(t *testing.T, token string) {
	t.Helper()
	open := map[string]bool{}
	p.eventually("watches", func() bool {
		for _, e := range p.exchanges() {
			if e.token != token || e.code != http.StatusOK {
				t.Errorf("%s: %d with token %.10s…", e.what, e.code, e.token)
			}
			open[e.what] = true
		}
		return open["GET services watch"] && open["GET endpointslices watch"] && open["GET nodes watch"]
	})
}
