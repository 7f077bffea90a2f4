//! The operations that there are. What is not named here is answered with `NotImplemented`.

use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, CompleteMultipartUploadInput,
    CompleteMultipartUploadOutput, CopyObjectInput, CopyObjectOutput, CreateBucketInput, CreateBucketOutput,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, DeleteBucketCorsInput, DeleteBucketCorsOutput,
    DeleteBucketInput, DeleteBucketLifecycleInput, DeleteBucketLifecycleOutput, DeleteBucketOutput,
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectTaggingInput, DeleteObjectTaggingOutput,
    DeleteObjectsInput, DeleteObjectsOutput, GetBucketAclInput, GetBucketAclOutput, GetBucketCorsInput,
    GetBucketCorsOutput, GetBucketEncryptionInput, GetBucketEncryptionOutput,
    GetBucketLifecycleConfigurationInput, GetBucketLifecycleConfigurationOutput, GetBucketLocationInput,
    GetBucketLocationOutput, GetBucketLoggingInput, GetBucketLoggingOutput, GetBucketOwnershipControlsInput,
    GetBucketOwnershipControlsOutput, GetBucketPolicyInput, GetBucketPolicyOutput, GetBucketReplicationInput,
    GetBucketReplicationOutput, GetBucketRequestPaymentInput, GetBucketRequestPaymentOutput,
    GetBucketTaggingInput, GetBucketTaggingOutput, GetBucketVersioningInput, GetBucketVersioningOutput,
    GetBucketWebsiteInput, GetBucketWebsiteOutput, GetObjectAclInput, GetObjectAclOutput,
    GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectInput, GetObjectLockConfigurationInput,
    GetObjectLockConfigurationOutput, GetObjectOutput, GetObjectTaggingInput, GetObjectTaggingOutput,
    GetPublicAccessBlockInput, GetPublicAccessBlockOutput, HeadBucketInput, HeadBucketOutput,
    HeadObjectInput, HeadObjectOutput, ListBucketsInput, ListBucketsOutput, ListMultipartUploadsInput,
    ListMultipartUploadsOutput, ListObjectVersionsInput, ListObjectVersionsOutput, ListObjectsInput,
    ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, ListPartsInput, ListPartsOutput,
    PutBucketAclInput, PutBucketAclOutput, PutBucketCorsInput, PutBucketCorsOutput,
    PutBucketLifecycleConfigurationInput, PutBucketLifecycleConfigurationOutput, PutObjectAclInput,
    PutObjectAclOutput, PutObjectInput, PutObjectOutput, PutObjectTaggingInput, PutObjectTaggingOutput,
    UploadPartCopyInput, UploadPartCopyOutput, UploadPartInput, UploadPartOutput,
};
use s3s::{S3, S3Request, S3Response, S3Result};
use synod_store::objects::contract::ObjectStore;

use super::Service;

macro_rules! operations {
    (
        waiting { $($name:ident: $input:ident -> $output:ident;)* }
        at once { $($quick:ident: $asked:ident -> $told:ident;)* }
    ) => {
        #[async_trait::async_trait]
        impl<S: ObjectStore> S3 for Service<S> {
            $(
                async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                    Service::$name(self, request).await
                }
            )*
            $(
                async fn $quick(&self, request: S3Request<$asked>) -> S3Result<S3Response<$told>> {
                    Service::$quick(self, &request)
                }
            )*
        }
    };
}

operations! {
    waiting {
        abort_multipart_upload: AbortMultipartUploadInput -> AbortMultipartUploadOutput;
        complete_multipart_upload: CompleteMultipartUploadInput -> CompleteMultipartUploadOutput;
        copy_object: CopyObjectInput -> CopyObjectOutput;
        create_bucket: CreateBucketInput -> CreateBucketOutput;
        create_multipart_upload: CreateMultipartUploadInput -> CreateMultipartUploadOutput;
        delete_bucket: DeleteBucketInput -> DeleteBucketOutput;
        delete_bucket_cors: DeleteBucketCorsInput -> DeleteBucketCorsOutput;
        delete_bucket_lifecycle: DeleteBucketLifecycleInput -> DeleteBucketLifecycleOutput;
        delete_object: DeleteObjectInput -> DeleteObjectOutput;
        delete_object_tagging: DeleteObjectTaggingInput -> DeleteObjectTaggingOutput;
        delete_objects: DeleteObjectsInput -> DeleteObjectsOutput;
        get_object: GetObjectInput -> GetObjectOutput;
        get_object_acl: GetObjectAclInput -> GetObjectAclOutput;
        get_object_attributes: GetObjectAttributesInput -> GetObjectAttributesOutput;
        get_object_tagging: GetObjectTaggingInput -> GetObjectTaggingOutput;
        head_object: HeadObjectInput -> HeadObjectOutput;
        list_buckets: ListBucketsInput -> ListBucketsOutput;
        list_multipart_uploads: ListMultipartUploadsInput -> ListMultipartUploadsOutput;
        list_object_versions: ListObjectVersionsInput -> ListObjectVersionsOutput;
        list_objects: ListObjectsInput -> ListObjectsOutput;
        list_objects_v2: ListObjectsV2Input -> ListObjectsV2Output;
        list_parts: ListPartsInput -> ListPartsOutput;
        put_bucket_cors: PutBucketCorsInput -> PutBucketCorsOutput;
        put_bucket_lifecycle_configuration: PutBucketLifecycleConfigurationInput -> PutBucketLifecycleConfigurationOutput;
        put_object: PutObjectInput -> PutObjectOutput;
        put_object_acl: PutObjectAclInput -> PutObjectAclOutput;
        put_object_tagging: PutObjectTaggingInput -> PutObjectTaggingOutput;
        upload_part: UploadPartInput -> UploadPartOutput;
        upload_part_copy: UploadPartCopyInput -> UploadPartCopyOutput;
    }
    at once {
        get_bucket_acl: GetBucketAclInput -> GetBucketAclOutput;
        get_bucket_cors: GetBucketCorsInput -> GetBucketCorsOutput;
        get_bucket_encryption: GetBucketEncryptionInput -> GetBucketEncryptionOutput;
        get_bucket_lifecycle_configuration: GetBucketLifecycleConfigurationInput -> GetBucketLifecycleConfigurationOutput;
        get_bucket_location: GetBucketLocationInput -> GetBucketLocationOutput;
        get_bucket_logging: GetBucketLoggingInput -> GetBucketLoggingOutput;
        get_bucket_ownership_controls: GetBucketOwnershipControlsInput -> GetBucketOwnershipControlsOutput;
        get_bucket_policy: GetBucketPolicyInput -> GetBucketPolicyOutput;
        get_bucket_replication: GetBucketReplicationInput -> GetBucketReplicationOutput;
        get_bucket_request_payment: GetBucketRequestPaymentInput -> GetBucketRequestPaymentOutput;
        get_bucket_tagging: GetBucketTaggingInput -> GetBucketTaggingOutput;
        get_bucket_versioning: GetBucketVersioningInput -> GetBucketVersioningOutput;
        get_bucket_website: GetBucketWebsiteInput -> GetBucketWebsiteOutput;
        get_object_lock_configuration: GetObjectLockConfigurationInput -> GetObjectLockConfigurationOutput;
        get_public_access_block: GetPublicAccessBlockInput -> GetPublicAccessBlockOutput;
        head_bucket: HeadBucketInput -> HeadBucketOutput;
        put_bucket_acl: PutBucketAclInput -> PutBucketAclOutput;
    }
}
