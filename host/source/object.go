package source

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-proxy/sluice/host/api/v1alpha1"
)

// Narrow removes from an object of sluice.dev what the configuration does not convert, such as its status, which changes more often than the
// rest.
func Narrow(o metav1.Object) {
	meta := metav1.ObjectMeta{Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), CreationTimestamp: o.GetCreationTimestamp(), Generation: o.GetGeneration()}
	switch v := o.(type) {
	case *v1alpha1.ServicePlugin:
		*v = v1alpha1.ServicePlugin{ObjectMeta: meta, Spec: v.Spec}
	case *v1alpha1.ServicePolicy:
		*v = v1alpha1.ServicePolicy{ObjectMeta: meta, Spec: v.Spec}
	case *v1alpha1.ClusterServicePolicy:
		*v = v1alpha1.ClusterServicePolicy{ObjectMeta: meta, Spec: v.Spec}
	}
}
