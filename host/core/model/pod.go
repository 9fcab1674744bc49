package model

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// Pod is what a policy may know of the Pod of an endpoint: values that its plugins declare. A source of a cluster reads no
// others.
type Pod struct {
	Name        Name
	Labels      map[string]string
	Annotations map[string]string // at most MaxAnnotation bytes each
	MilliCPU    int64             // requested by its containers; 0: nothing, or not read
	// ReadySince is when it became ready, Unix milliseconds by the clock of its node; 0: it is not, or the condition was not
	// read.
	ReadySince int64
}

// EndpointLoad is load that the endpoints of a Service report.
type EndpointLoad struct {
	// Values are decimal texts by the name of a field, see abi.KeyLoad, by the address of the endpoint.
	Values map[netip.Addr]map[string]string
}

// MaxAnnotation is the longest value of an annotation that plugins can see, in bytes. A longer one counts as absent. Labels have
// at most 63 bytes.
const MaxAnnotation = 256

// PodsState is whether the Pods of a Service have been read.
type PodsState uint8

// The states of the Pods of a Service.
const (
	PodsPending     PodsState = iota // they are not read, or not yet
	PodsRead                         // those that the Service selects
	PodsUnavailable                  // they cannot be read, for instance because the API server forbids it: their values are absent
)

// String returns a word for log lines.
func (s PodsState) String() string { return [...]string{"pending", "read", "unavailable"}[s] }

// Annotations are annotations of a Service in one string, sorted by key: most Services have few, and no policy asks for them.
type Annotations string

// maxAnnotations bounds Annotations, in bytes.
const maxAnnotations = 16 << 10

// tooLong stands for a value of more than MaxAnnotation bytes. No UTF-8 text has this byte.
const tooLong = "\xff"

// PackAnnotations returns the annotations whose values have at most MaxAnnotation bytes, and the keys of those with longer ones,
// in the order of their keys until maxAnnotations are reached. skip, which may be nil, leaves out keys.
func PackAnnotations(all map[string]string, skip func(key string) bool) Annotations {
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(all)) {
		value := all[key]
		switch {
		case strings.Contains(key, "\x00") || skip != nil && skip(key) || value == tooLong:
			continue
		case len(value) > MaxAnnotation:
			value = tooLong
		case strings.Contains(value, "\x00"):
			continue
		}
		if b.Len()+len(key)+len(value)+2 > maxAnnotations {
			break
		}
		b.WriteString(key + "\x00" + value + "\x00")
	}
	return Annotations(b.String())
}

// Only returns those of the annotations that have one of the keys, which are sorted.
func (a Annotations) Only(keys []string) Annotations {
	var out string
	for _, key := range keys {
		if value, ok := a.get(key); ok {
			out += key + "\x00" + value + "\x00"
		}
	}
	return Annotations(out)
}

// Get returns the value of an annotation. One that is too long counts as absent.
func (a Annotations) Get(key string) (value string, ok bool) {
	if value, ok = a.get(key); value == tooLong {
		return "", false
	}
	return value, ok
}

// TooLong reports whether the value of an annotation has more than MaxAnnotation bytes.
func (a Annotations) TooLong(key string) bool {
	value, _ := a.get(key)
	return value == tooLong
}

func (a Annotations) get(key string) (value string, ok bool) {
	for rest := string(a); rest != ""; {
		var k, v string
		k, rest, _ = strings.Cut(rest, "\x00")
		v, rest, _ = strings.Cut(rest, "\x00")
		if k == key {
			return v, true
		}
	}
	return "", false
}
