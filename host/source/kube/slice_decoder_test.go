package kube

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-proxy/sluice/host/source"
)

// encodedSlices returns slices with every field that source.Slice reads, present, absent and empty.
func encodedSlices(t testing.TB) (out [][]byte) {
	empty, no := "", false
	sparse := slice("sparse", "10.0.0.1")
	sparse.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-02T03:04:05Z", "": ""}
	sparse.Ports = append(sparse.Ports, discoveryv1.EndpointPort{}, discoveryv1.EndpointPort{Name: &empty, Protocol: new(corev1.Protocol), Port: new(int32)})
	sparse.Endpoints = append(sparse.Endpoints,
		discoveryv1.Endpoint{},
		discoveryv1.Endpoint{Addresses: []string{"10.0.0.2", "10.0.0.3"}, NodeName: &empty, Zone: &empty, Conditions: discoveryv1.EndpointConditions{Ready: &no},
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "a"}, {Name: "b"}}, ForNodes: []discoveryv1.ForNode{{Name: "n"}, {}}},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "p"}},
		discoveryv1.Endpoint{Addresses: []string{"10.0.0.4"}, Hints: &discoveryv1.EndpointHints{}, TargetRef: &corev1.ObjectReference{Kind: "VM", Name: "p"}},
		discoveryv1.Endpoint{Addresses: []string{"10.0.0.5"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "elsewhere", Name: "p"}})
	six := slice("six", "fd00::1", "fd00::2")
	six.AddressType = discoveryv1.AddressTypeIPv6
	six.Labels["endpointslice.kubernetes.io/managed-by"] = "me"
	headless := slice("headless")
	headless.Labels[source.LabelHeadless] = ""
	for _, o := range []*discoveryv1.EndpointSlice{bigSlice(1, 3), sparse, six, headless, {}} {
		raw, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, raw)
	}
	return out
}

// checkSliceDecoder compares what becomes of an encoded slice with what Kubernetes' decoder makes of it.
func checkSliceDecoder(t testing.TB, decode func([]byte) (any, error), raw []byte) {
	var want discoveryv1.EndpointSlice
	if err := want.Unmarshal(raw); err != nil {
		t.Fatal(err)
	}
	o, err := decode(raw)
	if err != nil {
		t.Fatalf("%x: %v; Kubernetes accepts it as %v", raw, err, &want)
	}
	got := o.(*discoveryv1.EndpointSlice)
	wantValue, wantSkip, wantProblems := source.Slice(&want)
	value, skip, problems := source.Slice(got)
	if !reflect.DeepEqual(value, wantValue) || skip != wantSkip || len(problems) != len(wantProblems) || got.Name != want.Name || got.Namespace != want.Namespace {
		t.Fatalf("%x: got %+v %q %v\nwant %+v %q %v", raw, value, skip, problems, wantValue, wantSkip, wantProblems)
	}
}

// checkDamagedSlice decodes bytes that may be no slice: that must not panic, nor leave anything to the next slice. What
// Kubernetes' decoder makes of them is then decoded from its proper form: it accepts some bytes that are not protobuf.
func checkDamagedSlice(t testing.TB, decode func([]byte) (any, error), raw []byte) (isSlice bool) {
	_, _ = decode(raw)
	var o discoveryv1.EndpointSlice
	if o.Unmarshal(raw) != nil {
		return false
	}
	proper, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	checkSliceDecoder(t, decode, proper)
	return true
}

func TestSliceDecoderAgreesWithKubernetes(t *testing.T) {
	encoded, random, decode := encodedSlices(t), rand.New(rand.NewPCG(1, 2)), newSliceDecoder(newInterner())
	for _, raw := range encoded {
		checkSliceDecoder(t, decode, raw)
		for _, more := range encoded { // what comes twice is merged
			checkSliceDecoder(t, decode, append(slices.Clone(raw), more...))
		}
	}
	isSlice := 0
	for range 20000 {
		raw := slices.Clone(encoded[random.IntN(len(encoded))])
		for range 1 + random.IntN(3) {
			if len(raw) == 0 {
				break
			}
			switch at := random.IntN(len(raw)); random.IntN(4) {
			case 0:
				raw[at] = byte(random.Uint32())
			case 1:
				raw[at] ^= 1 << random.IntN(8)
			case 2:
				raw = slices.Delete(raw, at, at+1)
			case 3:
				raw = slices.Insert(raw, at, byte(random.Uint32()))
			}
		}
		if checkDamagedSlice(t, decode, raw) {
			isSlice++
		}
	}
	if isSlice < 2000 {
		t.Errorf("only %d of 20000 damaged slices can be decoded", isSlice)
	}
}

func FuzzSliceDecoder(f *testing.F) {
	for _, raw := range encodedSlices(f) {
		f.Add(raw)
	}
	decode := newSliceDecoder(newInterner())
	f.Fuzz(func(t *testing.T, raw []byte) { checkDamagedSlice(t, decode, raw) })
}
