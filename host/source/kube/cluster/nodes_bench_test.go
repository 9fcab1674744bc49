package cluster_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/sluice-proxy/sluice/host/lab/testcluster"
)

// benchNodes are enough for what a list costs by itself to vanish; costs grow with their number.
const benchNodes = 1000

// BenchmarkReadingNodes is what the API server and the network pay when one node's agent learns of the others: bytes on
// the wire, and the server's processor time. host/FLEET.md has the arithmetic for 5,000 nodes.
func BenchmarkReadingNodes(b *testing.B) {
	c, ctx := benchCluster(b), b.Context()
	if err := c.Parallel(ctx, benchNodes, func(ctx context.Context, i int) error { return addBigNode(ctx, c, i) }); err != nil {
		b.Fatal(err)
	}
	const (
		object   = "application/vnd.kubernetes.protobuf"
		metadata = object + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	)
	for _, way := range []struct{ name, accept, query string }{
		{"whole list", object, "resourceVersion=0"},
		{"list of metadata", metadata, "resourceVersion=0"},
		{"stream", object, "watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&resourceVersion=0&timeoutSeconds=1"},
		{"one Node", object, "resourceVersion=0&fieldSelector=metadata.name%3D" + bigNodeName(7)},
	} {
		b.Run(way.name, func(b *testing.B) {
			client, err := rest.HTTPClientFor(c.Config)
			if err != nil {
				b.Fatal(err)
			}
			client.Transport = uncompressedTransport{client.Transport}
			var onWire, whole int64
			ask := func() {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Config.Host+"/api/v1/nodes?"+way.query, nil)
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("Accept", way.accept)
				wire, bytes, err := fetch(client, req)
				if err != nil {
					b.Fatal(err)
				}
				onWire, whole = onWire+wire, whole+bytes
			}
			ask() // the first request is more expensive, because the server caches encoded objects
			onWire, whole = 0, 0
			before := processorTime(b, c.PID("kube-apiserver"))
			for b.Loop() {
				ask()
			}
			n := float64(b.N)
			b.ReportMetric((processorTime(b, c.PID("kube-apiserver"))-before)*1000/n, "server-ms/op")
			b.ReportMetric(float64(onWire)/n/1024, "wire-KiB/op")
			b.ReportMetric(float64(whole)/n/1024, "KiB/op")
		})
	}
}

// benchCluster starts a cluster without controllers.
func benchCluster(b *testing.B) *testcluster.Cluster {
	b.Helper()
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		b.Fatal(err)
	}
	c, err := testcluster.Start(b.Context(), testcluster.Options{NoControllers: true})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	return c
}

// uncompressedTransport leaves answers as they are on the wire.
type uncompressedTransport struct{ http.RoundTripper }

func (u uncompressedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Accept-Encoding", "gzip")
	return u.RoundTripper.RoundTrip(r)
}

// countingReader counts what is read.
type countingReader struct {
	io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	return n, err
}

func fetch(client *http.Client, req *http.Request) (wire, whole int64, err error) {
	resp, err := client.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("%s: %s", req.URL, resp.Status)
	}
	from := &countingReader{Reader: resp.Body}
	body := io.Reader(from)
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if body, err = gzip.NewReader(from); err != nil {
			return 0, 0, err
		}
	}
	whole, err = io.Copy(io.Discard, body)
	return from.n, whole, err
}

// processorTime is what a process has used, in seconds: user and system.
func processorTime(b *testing.B, pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	ticks := 0
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return float64(ticks) / 100
}

func bigNodeName(i int) string {
	return fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1.compute.internal", i>>16, i>>8&255, i&255)
}

// addBigNode makes a Node as a cloud's are: labelled by kubelet and cloud, with conditions and 50 images, written by
// several managers.
func addBigNode(ctx context.Context, c *testcluster.Cluster, i int) error {
	zone := "eu-central-1" + string(rune('a'+i%3))
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: bigNodeName(i), Labels: map[string]string{
			"kubernetes.io/hostname": bigNodeName(i), "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
			"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/instance-type": "m6i.2xlarge", "node.kubernetes.io/instance-type": "m6i.2xlarge",
			"topology.kubernetes.io/region": "eu-central-1", "topology.kubernetes.io/zone": zone, "topology.ebs.csi.aws.com/zone": zone,
			"failure-domain.beta.kubernetes.io/region": "eu-central-1", "failure-domain.beta.kubernetes.io/zone": zone,
			"eks.amazonaws.com/nodegroup": "workers-" + zone, "eks.amazonaws.com/nodegroup-image": "ami-0123456789abcdef0", "eks.amazonaws.com/capacityType": "ON_DEMAND",
			"node-role.kubernetes.io/worker": "", "k8s.io/cloud-provider-aws": "b2c4991f4c3acb5b142be2a5d455731a",
		}, Annotations: map[string]string{
			"alpha.kubernetes.io/provided-node-ip": "10.0.0.1", "node.alpha.kubernetes.io/ttl": "15",
			"csi.volume.kubernetes.io/nodeid":                        `{"ebs.csi.aws.com":"i-0123456789abcdef0","efs.csi.aws.com":"i-0123456789abcdef0"}`,
			"volumes.kubernetes.io/controller-managed-attach-detach": "true",
		}},
		Spec: corev1.NodeSpec{PodCIDR: "10.244.0.0/24", PodCIDRs: []string{"10.244.0.0/24"}, ProviderID: "aws:///" + zone + "/i-0123456789abcdef0"},
	}
	made, err := c.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{FieldManager: "kubelet"})
	if err != nil {
		return err
	}
	cpu := corev1.ResourceList{"cpu": resource.MustParse("8"), "memory": resource.MustParse("32105456Ki"), "pods": resource.MustParse("58"),
		"ephemeral-storage": resource.MustParse("76224326324"), "hugepages-1Gi": resource.MustParse("0"), "hugepages-2Mi": resource.MustParse("0")}
	made.Status = corev1.NodeStatus{Capacity: cpu, Allocatable: cpu,
		Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeHostName, Address: made.Name},
			{Type: corev1.NodeInternalDNS, Address: made.Name}},
		NodeInfo: corev1.NodeSystemInfo{MachineID: "ec2d9a3b0c3b2bd7fd53b1b0e3d6f7a1", SystemUUID: "ec2d9a3b-0c3b-2bd7-fd53-b1b0e3d6f7a1", BootID: "5f0c1e74-63ad-4c7e-9bc5-1d2b9cf4e0a1",
			KernelVersion: "6.1.150-174.273.amzn2023.x86_64", OSImage: "Amazon Linux 2023.9", ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: "v1.36.3",
			OperatingSystem: "linux", Architecture: "amd64"},
	}
	for _, kind := range []corev1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		made.Status.Conditions = append(made.Status.Conditions, corev1.NodeCondition{Type: kind, Status: "False", Reason: "KubeletHasSufficient" + string(kind),
			Message: "kubelet has sufficient " + string(kind) + " available", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()})
	}
	for j := range 50 {
		repository := fmt.Sprintf("123456789012.dkr.ecr.eu-central-1.amazonaws.com/team-%d/service-%d", (i+j)%7, (i*31+j*17)%400)
		made.Status.Images = append(made.Status.Images, corev1.ContainerImage{SizeBytes: int64(1e8 + j),
			Names: []string{fmt.Sprintf("%s@sha256:%064x", repository, (i*31+j*17)%400*0x9e3779b97f4a7c1), repository + ":v1.20.3"}})
	}
	_, err = c.Client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{FieldManager: "kubelet"})
	if err != nil {
		return err
	}
	_, err = c.Client.CoreV1().Nodes().Patch(ctx, made.Name, "application/strategic-merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"node.alpha.kubernetes.io/ttl":"30"},"labels":{"team":"platform"}}}`), metav1.PatchOptions{FieldManager: "kube-controller-manager"})
	return err
}
