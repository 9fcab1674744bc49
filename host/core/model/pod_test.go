package model

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestAnnotationsReturnWhatWasPacked(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		all := map[string]string{}
		for range random.IntN(20) {
			all[fmt.Sprint("k", random.IntN(30))] = strings.Repeat("v", random.IntN(2)*random.IntN(300))
		}
		packed := PackAnnotations(all, func(key string) bool { return key == "k7" })
		for i := range 31 {
			key := fmt.Sprint("k", i)
			want, has := all[key]
			if has = has && len(want) <= MaxAnnotation && key != "k7"; !has {
				want = ""
			}
			if got, ok := packed.Get(key); got != want || ok != has {
				t.Fatalf("%v: %s is %q %t, want %q %t", all, key, got, ok, want, has)
			}
			long := len(all[key]) > MaxAnnotation && key != "k7"
			if packed.TooLong(key) != long || packed.Only([]string{key}).TooLong(key) != long {
				t.Fatalf("%v: %s is too long: %t, want %t", all, key, packed.TooLong(key), long)
			}
		}
	}
}

func TestAnnotationsAreBounded(t *testing.T) {
	all := map[string]string{"zero\x00": "x", "zero": "\x00x"}
	for i := range 1000 {
		all[fmt.Sprintf("a%03d", i)] = strings.Repeat("x", MaxAnnotation)
	}
	packed := PackAnnotations(all, nil)
	if len(packed) > maxAnnotations || len(packed) < maxAnnotations-MaxAnnotation-10 {
		t.Errorf("%d bytes", len(packed))
	}
	if _, ok := packed.Get("a000"); !ok {
		t.Error("the first one is missing")
	}
	for _, key := range []string{"a999", "zero", "zero\x00", "x", ""} {
		if v, ok := packed.Get(key); ok {
			t.Errorf("%q: %q", key, v)
		}
	}
}

func TestPodsOfAServiceAreReadOnDemand(t *testing.T) {
	s, web := NewSnapshot(), Name{"shop", "web"}
	if s.PodsOf(web) != PodsRead {
		t.Error("a source that reads all Pods")
	}
	s.Apply(Change{Kind: PodsOnDemandKind, Value: true})
	if s.PodsOf(web) != PodsPending {
		t.Error("nothing has been read")
	}
	for _, state := range []PodsState{PodsRead, PodsUnavailable, PodsPending} {
		if affected := s.Apply(Change{Kind: PodsReadKind, Name: web, Pods: state}); len(affected) != 1 || affected[0] != web || s.PodsOf(web) != state {
			t.Errorf("%s: %v, %s", state, affected, s.PodsOf(web))
		}
	}
	if len(s.podsOf) > 0 {
		t.Errorf("%v is kept", s.podsOf)
	}
	pod := &Pod{Name: Name{"shop", "web-1"}}
	if s.Apply(Change{Kind: PodKind, Name: pod.Name, Pod: pod}); s.Pods[pod.Name] != pod {
		t.Error("the Pod is missing")
	}
	if s.Apply(Change{Kind: PodKind, Name: pod.Name}); len(s.Pods) > 0 {
		t.Error("the Pod is kept")
	}
}
