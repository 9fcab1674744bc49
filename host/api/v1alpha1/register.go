package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds.
var GroupVersion = schema.GroupVersion{Group: "sluice.dev", Version: "v1alpha1"}

// Kinds.
const (
	ServicePluginKind        = "ServicePlugin"
	ServicePolicyKind        = "ServicePolicy"
	ClusterServicePolicyKind = "ClusterServicePolicy"
	NodeReportKind           = "NodeReport"
	EndpointLoadKind         = "EndpointLoad"
)

// AddToScheme adds the kinds to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &ServicePlugin{}, &ServicePluginList{}, &ServicePolicy{}, &ServicePolicyList{},
		&ClusterServicePolicy{}, &ClusterServicePolicyList{}, &NodeReport{}, &NodeReportList{}, &EndpointLoad{}, &EndpointLoadList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
