package cluster_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/lab/testcluster"
	"github.com/sluice-proxy/sluice/host/lab/testenv"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/source/kube"
)

// benchAgents have a source and a connection each.
const benchAgents = 100

// BenchmarkChangeOfAPod is what the API server pays for one change of a Pod, and what it sends: without agents, with agents that
// watch the metadata of the Pods that the Pod's Service selects, or whole Pods, and with agents that watch other Pods of the
// namespace. host/FLEET.md has the arithmetic for 5,000 nodes.
func BenchmarkChangeOfAPod(b *testing.B) {
	c, ctx := benchCluster(b), b.Context()
	fatal := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{})
	fatal(err)
	_, err = c.Client.CoreV1().ServiceAccounts("shop").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	fatal(err)
	fatal(c.AddNode(ctx, testcluster.Node{Name: "n1", Zone: "a"}))
	for _, app := range []string{"web", "other"} {
		s := testcluster.Service("shop", app, netip.Addr{}, 80)
		s.Spec.Selector = map[string]string{"app": app}
		_, err := c.Client.CoreV1().Services("shop").Create(ctx, s, metav1.CreateOptions{})
		fatal(err)
		for i := range 10 {
			fatal(addPodOfADeployment(ctx, c, app, i))
		}
	}
	for _, way := range []struct {
		name, service string
		keys          source.PodKeys
	}{
		{"without agents", "", source.PodKeys{}},
		{"metadata", "web", source.PodKeys{Labels: []string{"track"}}},
		{"whole Pods", "web", source.PodKeys{Labels: []string{"track"}, Full: true}},
		{"metadata of other Pods", "other", source.PodKeys{Labels: []string{"track"}}},
	} {
		b.Run(way.name, func(b *testing.B) {
			var received atomic.Int64
			watching := startPodAgents(b, c, way.service, way.keys, &received)
			round := 0
			change := func() {
				round++
				track := fmt.Sprintf("t%d-%d", b.N, round)
				_, err := c.Client.CoreV1().Pods("shop").Patch(ctx, "web-7d4b9c6f58-0", types.MergePatchType,
					fmt.Appendf(nil, `{"metadata":{"labels":{"track":%q}}}`, track), metav1.PatchOptions{FieldManager: "kubectl"})
				if err != nil {
					b.Fatal(err)
				}
			}
			change()
			bytes := watchedBytes(b, c, way.service, way.keys, change)
			before, got := processorTime(b, c.PID("kube-apiserver")), received.Load()
			changes := 0
			for b.Loop() {
				change()
				changes++
			}
			if way.service == "web" { // every agent has received every change, but those that followed each other closely
				testenv.Eventually(b, "every agent has received the change", func() bool { return received.Load()-got >= int64(watching) })
			}
			n := float64(changes)
			b.ReportMetric((processorTime(b, c.PID("kube-apiserver"))-before)*1000/n, "server-ms/op")
			b.ReportMetric(float64(received.Load()-got)/n, "received/op")
			b.ReportMetric(float64(bytes), "bytes/event")
		})
	}
}

// addPodOfADeployment creates a Pod with the metadata and the size of one that runs.
func addPodOfADeployment(ctx context.Context, c *testcluster.Cluster, app string, i int) error {
	yes := true
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("%s-7d4b9c6f58-%d", app, i), GenerateName: app + "-7d4b9c6f58-",
			Labels: map[string]string{"app": app, "app.kubernetes.io/name": app, "app.kubernetes.io/instance": app + "-production", "app.kubernetes.io/version": "1.42.0",
				"pod-template-hash": "7d4b9c6f58", "track": "stable"},
			Annotations: map[string]string{"checksum/config": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
				"prometheus.io/scrape": "true", "prometheus.io/port": "9090", "kubectl.kubernetes.io/restartedAt": "2026-01-02T03:04:05Z"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-7d4b9c6f58", UID: "0b1f4a52-3c5d-4b8a-9e6f-1d2c3b4a5f60", Controller: &yes, BlockOwnerDeletion: &yes}}},
		Spec: corev1.PodSpec{NodeName: "n1"},
	}
	for _, name := range []string{app, "sidecar"} {
		container := corev1.Container{Name: name, Image: "registry.example.com/team/" + name + ":1.42.0", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}
		if name == "sidecar" {
			container.Ports = nil
		}
		for j := range 15 {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprint("SETTING_", j), Value: "postgres://database.production.svc.cluster.local:5432"})
		}
		container.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/health", "--ready"}}}}
		container.LivenessProbe = container.ReadinessProbe
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	if _, err := c.Client.CoreV1().Pods("shop").Create(ctx, pod, metav1.CreateOptions{FieldManager: "kube-controller-manager"}); err != nil {
		return err
	}
	return c.SetPodStatus(ctx, "shop", pod.Name, func(s *corev1.PodStatus) {
		s.Phase, s.PodIP = corev1.PodRunning, fmt.Sprintf("10.2.0.%d", i)
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
		for _, kind := range []corev1.PodConditionType{corev1.PodReady, corev1.ContainersReady, corev1.PodInitialized, corev1.PodScheduled, corev1.PodReadyToStartContainers} {
			s.Conditions = append(s.Conditions, corev1.PodCondition{Type: kind, Status: "True", LastTransitionTime: metav1.Now()})
		}
		for i := range pod.Spec.Containers {
			s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{Name: pod.Spec.Containers[i].Name, Image: pod.Spec.Containers[i].Image, Ready: true,
				ImageID: "registry.example.com/team/image@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", ContainerID: "containerd://9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"})
		}
	})
}

// startPodAgents starts agents that read the Pods of a Service, and returns their number when all have. received counts the
// changes of Pods that they get.
func startPodAgents(b *testing.B, c *testcluster.Cluster, service string, keys source.PodKeys, received *atomic.Int64) int {
	b.Helper()
	if service == "" {
		return 0
	}
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	b.Cleanup(func() { stop(); running.Wait() })
	var ready sync.WaitGroup
	for range benchAgents {
		kubeconfig, err := c.UserKubeconfig("agent", "system:masters") // a certificate and so a connection each
		if err != nil {
			b.Fatal(err)
		}
		client, err := kube.Connect(kube.Connection{Kubeconfig: kubeconfig, Version: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		s := kube.New(kube.Options{Client: client, Node: "n1", Log: slog.New(slog.DiscardHandler), Now: time.Now, After: time.After})
		s.SetNeeds(onAnyNode(func(v *model.Service) kube.Needs {
			if v.Name.Name != service {
				return kube.Needs{}
			}
			return kube.Needs{Pods: keys}
		}))
		ready.Add(1)
		read := sync.OnceFunc(ready.Done)
		running.Go(func() {
			_ = s.Run(ctx, func(changes []model.Change) {
				for i := range changes {
					switch changes[i].Kind {
					case model.PodsReadKind:
						if changes[i].Pods == model.PodsRead {
							read()
						}
					case model.PodKind:
						received.Add(1)
					}
				}
			})
		})
	}
	ready.Wait()
	return benchAgents
}

// watchedBytes returns the size of the event that a watch receives for a change, 0 if it receives none.
func watchedBytes(b *testing.B, c *testcluster.Cluster, service string, keys source.PodKeys, change func()) int {
	b.Helper()
	if service != "web" {
		return 0
	}
	client, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		b.Fatal(err)
	}
	list, err := c.Client.CoreV1().Pods("shop").List(b.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		b.Fatal(err)
	}
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet,
		c.Config.Host+"/api/v1/namespaces/shop/pods?watch=true&labelSelector=app%3Dweb&resourceVersion="+list.ResourceVersion, nil)
	if err != nil {
		b.Fatal(err)
	}
	accept := "application/vnd.kubernetes.protobuf"
	if !keys.Full {
		accept += ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	change()
	in := bufio.NewReader(resp.Body)
	head, err := in.Peek(4) // a frame begins with its length
	if err != nil {
		b.Fatal(err)
	}
	return 4 + int(head[0])<<24 + int(head[1])<<16 + int(head[2])<<8 + int(head[3])
}
