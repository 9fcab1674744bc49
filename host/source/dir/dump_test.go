package dir

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// writeDump writes a file with a List of Services of ten endpoints each, as `kubectl get services,endpointslices -A` prints it.
func writeDump(tb testing.TB, path string, services int) {
	tb.Helper()
	items := make([]any, 0, 2*services)
	for i := range services {
		items = append(items, dumpedService(i))
	}
	for i := range services {
		items = append(items, dumpedSlice(i))
	}
	text, err := json.MarshalIndent(map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{"resourceVersion": ""}, "items": items}, "", "    ")
	if err != nil {
		tb.Fatal(err)
	}
	if filepath.Ext(path) == ".yaml" {
		// The List is written item by item: converting all at once takes gigabytes.
		var out bytes.Buffer
		out.WriteString("apiVersion: v1\nitems:\n")
		for _, it := range items {
			one, err := yaml.Marshal(it)
			if err != nil {
				tb.Fatal(err)
			}
			out.WriteString("- " + string(bytes.ReplaceAll(bytes.TrimSuffix(one, []byte("\n")), []byte("\n"), []byte("\n  "))) + "\n")
		}
		out.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
		text = out.Bytes()
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		tb.Fatal(err)
	}
}

func dumpedMeta(kind, name string, i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: fmt.Sprintf("ns-%d", i%100), UID: types.UID(fmt.Sprintf("0e9b1c5e-7f0a-4c55-9f3d-%012d", i)),
		ResourceVersion: fmt.Sprint(100000 + i), Generation: 3, CreationTimestamp: metav1.NewTime(time.Unix(1750000000, 0)),
		Labels:      map[string]string{"app.kubernetes.io/name": fmt.Sprintf("web-%d", i), "app.kubernetes.io/managed-by": "Helm"},
		Annotations: map[string]string{"meta.helm.sh/release-name": fmt.Sprintf("web-%d", i), "meta.helm.sh/release-namespace": fmt.Sprintf("ns-%d", i%100)},
	}
}

func dumpedService(i int) *corev1.Service {
	ip := fmt.Sprintf("10.96.%d.%d", i/250, i%250+1)
	return &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: dumpedMeta("Service", fmt.Sprintf("web-%d", i), i),
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
			InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster), Type: corev1.ServiceTypeClusterIP, SessionAffinity: corev1.ServiceAffinityNone,
			Selector: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("web-%d", i)},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("http")}},
		},
	}
}

func dumpedSlice(i int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("web-%d", i)
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: dumpedMeta("EndpointSlice", name+"-x7f2q", i),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	s.GenerateName = name + "-"
	s.Labels[discoveryv1.LabelServiceName], s.Labels[discoveryv1.LabelManagedBy] = name, "endpointslice-controller.k8s.io"
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: name, UID: s.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}
	for e := range 10 {
		n := i*10 + e
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", 128+n/65536, n/256%256, n%256)},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			NodeName:   ptr.To(fmt.Sprintf("node-%d", n%500)), Zone: ptr.To(fmt.Sprintf("zone-%c", 'a'+n%3)),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: fmt.Sprintf("%s-7c9d8b6f5-%05d", name, e), UID: s.UID},
		})
	}
	return s
}
