package source

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/core/model"
)

// PodKeys are what plugins declare to read of Pods.
type PodKeys struct {
	Labels, Annotations []string // sorted, unique
	// Full also asks for what is not metadata: the CPU that its containers request, and since when it is ready.
	Full bool
}

// Any reports whether anything is to be read.
func (k *PodKeys) Any() bool { return k.Full || len(k.Labels)+len(k.Annotations) > 0 }

// Covers reports whether k has all of other.
func (k *PodKeys) Covers(other *PodKeys) bool {
	has := func(list, others []string) bool {
		return !slices.ContainsFunc(others, func(s string) bool { _, found := slices.BinarySearch(list, s); return !found })
	}
	return (k.Full || !other.Full) && has(k.Labels, other.Labels) && has(k.Annotations, other.Annotations)
}

// Union returns what k or other asks for.
func (k *PodKeys) Union(other *PodKeys) PodKeys {
	if k.Covers(other) {
		return *k
	}
	both := func(a, b []string) []string {
		return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
	}
	return PodKeys{both(k.Labels, other.Labels), both(k.Annotations, other.Annotations), k.Full || other.Full}
}

// maxLabel is the longest value of a label, in bytes.
const maxLabel = 63

// Pod converts a Pod: what keys name, or everything without keys. The value is never nil. An annotation that is too long counts
// as absent; it is a problem if keys name it.
func Pod(o *corev1.Pod, keys *PodKeys) (*model.Pod, []Problem) {
	v, problems := PodMetadata(&o.ObjectMeta, keys)
	if keys == nil || keys.Full {
		v.MilliCPU = requestedCPU(&o.Spec)
		v.ReadySince = readySince(&o.Status)
	}
	return v, problems
}

// PodMetadata converts the metadata of a Pod in the same way.
func PodMetadata(o *metav1.ObjectMeta, keys *PodKeys) (*model.Pod, []Problem) {
	p := problems{object: "Pod " + o.Namespace + "/" + o.Name}
	v := &model.Pod{Name: model.Name{Namespace: o.Namespace, Name: o.Name}}
	declared := keys
	if keys == nil {
		declared = &PodKeys{Labels: slices.Sorted(maps.Keys(o.Labels)), Annotations: slices.Sorted(maps.Keys(o.Annotations))}
	}
	v.Labels = p.values(o.Labels, declared.Labels, "metadata.labels", maxLabel, true)
	v.Annotations = p.values(o.Annotations, declared.Annotations, "metadata.annotations", model.MaxAnnotation, keys != nil)
	return v, p.all()
}

// values returns the values of keys, nil if there are none. Longer ones than limit bytes are left out.
func (p *problems) values(all map[string]string, keys []string, field string, limit int, report bool) map[string]string {
	var out map[string]string
	for _, key := range keys {
		value, ok := all[key]
		switch {
		case !ok:
		case len(value) > limit:
			if report {
				p.warn(fmt.Sprintf("%s[%.317s]", field, key), "%d bytes, plugins see at most %d: it counts as absent", len(value), limit)
			}
		case !utf8.ValidString(value):
			if report {
				p.warn(fmt.Sprintf("%s[%.317s]", field, key), "not UTF-8: it counts as absent")
			}
		default:
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}

// maxMilliCPU bounds the CPU of a Pod or Node: a million processors.
const maxMilliCPU = 1_000_000_000

// milliCPU returns a quantity in millicores, at most maxMilliCPU; 0 if it is negative.
func milliCPU(q resource.Quantity) int64 {
	switch {
	case q.Sign() <= 0:
		return 0
	case q.Value() > maxMilliCPU/1000: // MilliValue would overflow
		return maxMilliCPU
	}
	return min(q.MilliValue(), maxMilliCPU)
}

// requestedCPU returns the millicores that a Pod requests while it runs (KEP-753, KEP-2837): those of the Pod, or those of its
// containers and sidecar containers together.
func requestedCPU(spec *corev1.PodSpec) int64 {
	of := func(r *corev1.ResourceRequirements) int64 {
		return milliCPU(r.Requests[corev1.ResourceCPU])
	}
	if spec.Resources != nil {
		if n := of(spec.Resources); n > 0 {
			return n
		}
	}
	var sum int64
	for i := range spec.Containers {
		sum += of(&spec.Containers[i].Resources)
	}
	for i := range spec.InitContainers {
		if policy := spec.InitContainers[i].RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			sum += of(&spec.InitContainers[i].Resources)
		}
	}
	return min(sum, maxMilliCPU)
}

// readySince returns since when a Pod is ready, Unix milliseconds; 0 if it is not, or if the time is not plausible.
func readySince(status *corev1.PodStatus) int64 {
	for i := range status.Conditions {
		c := &status.Conditions[i]
		if c.Type != corev1.PodReady || c.Status != corev1.ConditionTrue || c.LastTransitionTime.IsZero() {
			continue
		}
		if s := c.LastTransitionTime.Unix(); s > 0 && s <= math.MaxUint32 {
			return s * 1000
		}
	}
	return 0
}
