package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// EndpointLoad is load that the endpoints of a Service report, by their addresses: what plugins with keys `load:` see. It has the
// name of its Service, which owns it. Who writes it has the right to write those of all namespaces.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=sel,categories=sluice
// +kubebuilder:metadata:annotations="sluice.dev/schema=1"
// +kubebuilder:printcolumn:name="Reporting",type=integer,JSONPath=`.reporting`
// +kubebuilder:printcolumn:name="Silent",type=integer,JSONPath=`.silent`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type EndpointLoad struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// Endpoints that report, sorted by address.
	// +kubebuilder:validation:MaxItems=1000
	// +listType=map
	// +listMapKey=address
	// +optional
	Endpoints []ReportedLoad `json:"endpoints,omitempty"`
	// Reporting is the number of endpoints that report, Silent that of the others.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Reporting int32 `json:"reporting"`
	// +kubebuilder:validation:Minimum=0
	// +optional
	Silent int32 `json:"silent"`
	// Message says why endpoints are silent.
	// +kubebuilder:validation:MaxLength=512
	// +optional
	Message string `json:"message,omitempty"`
}

// EndpointLoadList is a list of EndpointLoads.
//
// +kubebuilder:object:root=true
type EndpointLoadList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []EndpointLoad `json:"items"`
}

// ReportedLoad is load that an endpoint reports.
type ReportedLoad struct {
	// Address is an IP address.
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:MinLength=1
	// +required
	Address string `json:"address"`
	// Values are decimal numbers by the fields of the report (xds.data.orca.v3.OrcaLoadReport): application_utilization,
	// cpu_utilization, mem_utilization, rps_fractional, eps, utilization/NAME and named_metrics/NAME.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	Values map[string]LoadValue `json:"values,omitempty"`
}

// LoadValue is a decimal number that is not negative, without an exponent.
//
// +kubebuilder:validation:MaxLength=24
// +kubebuilder:validation:Pattern=`^[0-9]{1,12}([.][0-9]{1,9})?$`
type LoadValue string
