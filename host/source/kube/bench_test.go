package kube

import (
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// wire encodes and decodes objects as a watch does.
type wire struct{ *protobuf.Serializer }

func newWire() wire {
	scheme := k8sruntime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Service{})
	scheme.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{})
	return wire{protobuf.NewSerializer(scheme, scheme)}
}

func (w wire) encode(b testing.TB, o k8sruntime.Object) []byte {
	raw, err := k8sruntime.Encode(w, o)
	if err != nil {
		b.Fatal(err)
	}
	return raw
}

func (w wire) decode(b testing.TB, raw []byte) k8sruntime.Object {
	o, _, err := w.Decode(raw, nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	return o
}

// bigSlice is slice i of a cluster as its controller writes it, with n endpoints on 1000 nodes in 3 zones.
func bigSlice(i, n int) *discoveryv1.EndpointSlice {
	o := slice(fmt.Sprint("service-", i))
	o.TypeMeta = metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}
	addServerMetadata(&o.ObjectMeta, i)
	o.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z"}
	yes, no := true, false
	for e := range n {
		at := i*n + e
		on, zone := fmt.Sprintf("ip-10-0-%d-%d.ec2.internal", at%1000/250, at%250), fmt.Sprint("eu-central-1", string(rune('a'+at%3)))
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 1+at>>16, at>>8&255, at&255)}, NodeName: &on, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			Hints:      &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: fmt.Sprintf("service-%d-7c5ddbdf54-%05d", i, e),
				UID: types.UID(fmt.Sprintf("6ba7b810-9dad-11d1-80b4-%012d", at))},
		})
	}
	return o
}

// addServerMetadata adds the metadata that an API server and its clients write.
func addServerMetadata(m *metav1.ObjectMeta, i int) {
	m.UID, m.ResourceVersion = types.UID(fmt.Sprintf("6ba7b810-9dad-11d1-80b4-%012d", i)), fmt.Sprint(100000+i)
	m.CreationTimestamp = metav1.Unix(1700000000, 0)
	m.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1",
		FieldsV1: metav1.NewFieldsV1(string(make([]byte, 600)))}}
}

func bigService(i int) *corev1.Service {
	o := svc(fmt.Sprint("service-", i), func(o *corev1.Service) {
		o.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
		o.Spec.ClusterIP = fmt.Sprintf("10.96.%d.%d", i>>8&255, i&255)
		o.Spec.ClusterIPs, o.Spec.Selector = []string{o.Spec.ClusterIP}, map[string]string{"app": o.Name}
	})
	addServerMetadata(&o.ObjectMeta, i)
	return o
}

// BenchmarkSliceUpdate measures a slice from its bytes on the wire to the emitted change.
func BenchmarkSliceUpdate(b *testing.B) {
	for _, n := range []int{1, 25, 100} {
		b.Run(fmt.Sprint(n, " endpoints"), func(b *testing.B) {
			w, o := newWire(), bigSlice(1, n)
			var raw [2][]byte
			raw[0] = w.encode(b, o)
			*o.Endpoints[0].Conditions.Ready = false
			raw[1] = w.encode(b, o)
			s := benchSource()
			s.started, s.emit = true, func([]model.Change) {}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := s.slices.Update(w.decode(b, raw[i%2])); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(raw[0])), "wire-B")
		})
	}
}

func benchSource() *Source {
	return New(Options{Client: &Client{}, Log: slog.New(slog.DiscardHandler), Now: time.Now})
}

// BenchmarkInitialSync measures memory for the lists of a whole cluster: the peak and what stays.
func BenchmarkInitialSync(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10000, 10}, {10000, 25}, {2500, 100}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			services, slices := make([][]byte, size.services), make([][]byte, size.services)
			for i := range services {
				var err [2]error
				services[i], err[0] = bigService(i).Marshal()
				if slices[i], err[1] = bigSlice(i, size.endpoints).Marshal(); err[0] != nil || err[1] != nil {
					b.Fatal(err)
				}
			}
			var peak, stays float64
			for b.Loop() {
				before := heapAfterGC()
				s := benchSource()
				var most uint64
				list := func(raw [][]byte, readItem func([]byte) (k8sruntime.Object, error), into cache.ReflectorStore) {
					var items []any
					for i, one := range raw {
						item, err := readItem(one)
						if err != nil {
							b.Fatal(err)
						}
						if items = append(items, item); i%500 == 0 {
							most = max(most, heapInUse())
						}
					}
					if err := into.Replace(items, ""); err != nil {
						b.Fatal(err)
					}
					most = max(most, heapInUse())
				}
				list(services, s.services.readItem, s.services)
				list(slices, s.slices.readItem, s.slices)
				s.emit = func([]model.Change) {}
				s.opt.Client = &Client{}
				s.emitInitialState()
				stays = float64(heapAfterGC() - before)
				peak = float64(most - before)
				runtime.KeepAlive(s)
			}
			n := float64(size.services * size.endpoints)
			b.ReportMetric(stays/n, "B/endpoint")
			b.ReportMetric(stays/(1<<20), "MiB-stay")
			b.ReportMetric(peak/(1<<20), "MiB-peak")
			runtime.KeepAlive(services)
			runtime.KeepAlive(slices)
		})
	}
}

func heapAfterGC() uint64 {
	runtime.GC()
	runtime.GC()
	return heapInUse()
}

func heapInUse() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
