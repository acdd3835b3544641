//! Programs that must not compile, each as an example in the documentation: they use the crate as it
//! is built for the other tests. A list, since a macro cannot read a folder.

macro_rules! wrong {
    ($($name:ident $file:literal)*) => {$(
        #[doc = concat!(
            "```compile_fail\n",
            include_str!(concat!("../tests/compile_fail/", $file, ".rs")),
            "\n```"
        )]
        struct $name;
    )*};
}

wrong! {
    AtomicAtAnyAddress "atomic_at_any_address"
    AtomicOfAnyLength "atomic_of_any_length"
    AtomicOnUc "atomic_on_uc"
    AtomicWithMoreMemory "atomic_with_more_memory"
    BatchOfAnotherService "batch_of_another_service"
    ConnectTwice "connect_twice"
    ConnectUd "connect_ud"
    DatagramWithoutDestination "datagram_without_destination"
    DestinationOnRc "destination_on_rc"
    FenceOnUc "fence_on_uc"
    InlineAndSge "inline_and_sge"
    InlineRead "inline_read"
    MulticastOnRc "multicast_on_rc"
    OwnService "own_service"
    ReadOnUc "read_on_uc"
    ReceiveInReset "receive_in_reset"
    ReferenceToRegisteredMemory "reference_to_registered_memory"
    ReregUnderASlice "rereg_under_a_slice"
    SendBeforeConnect "send_before_connect"
    SgeBeforeOperation "sge_before_operation"
    SliceOutlivesRegion "slice_outlives_region"
    SolicitedWrite "solicited_write"
    TwoRequestsAtOnce "two_requests_at_once"
    WindowOfAnotherType "window_of_another_type"
    WriteOnUd "write_on_ud"
    WriteWithoutRemote "write_without_remote"
}
