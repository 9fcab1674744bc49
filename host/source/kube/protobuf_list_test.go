package kube

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestForEachItemDecodesEveryItemOrFails(t *testing.T) {
	var items []runtime.Object
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprint("n", i))
		items = append(items, node(names[i], "z1"))
	}
	raw := protobufList(t, "nodes", items, 7)
	read := func(r io.Reader) (got []string, err error) {
		metadata, err := forEachItem(r, func(raw []byte) error {
			var n corev1.Node
			if err := n.Unmarshal(raw); err != nil {
				return err
			}
			got = append(got, n.Name)
			return nil
		})
		if err == nil && metadata.ResourceVersion != "7" {
			t.Errorf("version %q of the list", metadata.ResourceVersion)
		}
		return got, err
	}
	for _, r := range []io.Reader{bytes.NewReader(raw), iotest.OneByteReader(bytes.NewReader(raw))} {
		if got, err := read(r); err != nil || !slices.Equal(got, names) {
			t.Errorf("%q, %v", got, err)
		}
	}
	if got, err := read(bytes.NewReader(protobufList(t, "nodes", nil, 7))); err != nil || len(got) > 0 {
		t.Errorf("an empty list: %q, %v", got, err)
	}
	end := len(raw) - len(raw)/8 // the rest of the message does not belong to the list
	for n := range end {
		if got, err := read(bytes.NewReader(raw[:n])); err == nil {
			t.Fatalf("cut at %d of %d: %q and no error", n, len(raw), got)
		}
	}
	for name, bad := range map[string][]byte{
		"JSON":                 []byte(`{"items": []}`),
		"no list":              []byte(protobufMagic),
		"an item without end":  append([]byte(protobufMagic), 0x12, 0x05, 0x12, 0xff, 0xff, 0xff, 0x0f),
		"a number for a field": append([]byte(protobufMagic), 0x12, 0x02, 0x10, 0x01),
	} {
		if got, err := read(bytes.NewReader(bad)); err == nil {
			t.Errorf("%s: %q and no error", name, got)
		}
	}
}

func FuzzForEachItem(f *testing.F) {
	f.Add(protobufList(f, "nodes", []runtime.Object{node("a", "z"), node("b", "z")}, 7))
	f.Add([]byte(protobufMagic))
	f.Fuzz(func(t *testing.T, raw []byte) {
		total := 0
		_, _ = forEachItem(bytes.NewReader(raw), func(item []byte) error { total += len(item); return nil })
		if total > len(raw) {
			t.Errorf("%d bytes of items in %d", total, len(raw))
		}
	})
}
