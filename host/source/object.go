package source

import (
	"encoding/json"
	"hash/fnv"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
)

// Narrow removes from an object of sluice.dev what the configuration does not convert, such as its status, which changes more
// often than the rest. Of labels and annotations, a digest stays, as the only annotation: with it, objects differ after every
// write but those of a status.
func Narrow(o metav1.Object) {
	meta := metav1.ObjectMeta{Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), CreationTimestamp: o.GetCreationTimestamp(), Generation: o.GetGeneration(), ResourceVersion: o.GetResourceVersion()}
	if meta.ResourceVersion != "" {
		digest := fnv.New64a()
		_ = json.NewEncoder(digest).Encode([]any{o.GetLabels(), o.GetAnnotations(), o.GetFinalizers(), o.GetOwnerReferences(), o.GetDeletionTimestamp()})
		meta.Annotations = map[string]string{"digest": strconv.FormatUint(digest.Sum64(), 36)}
	}
	switch v := o.(type) {
	case *v1alpha1.ServicePlugin:
		*v = v1alpha1.ServicePlugin{ObjectMeta: meta, Spec: v.Spec}
	case *v1alpha1.ServicePolicy:
		*v = v1alpha1.ServicePolicy{ObjectMeta: meta, Spec: v.Spec}
	case *v1alpha1.ClusterServicePolicy:
		*v = v1alpha1.ClusterServicePolicy{ObjectMeta: meta, Spec: v.Spec}
	}
}
