//! The operations that there are. What is not named here is answered with `NotImplemented`.

use s3s::dto::{
    CreateBucketInput, CreateBucketOutput, DeleteBucketInput, DeleteBucketOutput, DeleteObjectInput,
    DeleteObjectOutput, GetBucketLocationInput, GetBucketLocationOutput, GetObjectInput, GetObjectOutput,
    HeadBucketInput, HeadBucketOutput, HeadObjectInput, HeadObjectOutput, ListBucketsInput,
    ListBucketsOutput, ListObjectVersionsInput, ListObjectVersionsOutput, ListObjectsInput,
    ListObjectsOutput, ListObjectsV2Input, ListObjectsV2Output, PutObjectInput, PutObjectOutput,
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
        create_bucket: CreateBucketInput -> CreateBucketOutput;
        delete_bucket: DeleteBucketInput -> DeleteBucketOutput;
        delete_object: DeleteObjectInput -> DeleteObjectOutput;
        get_object: GetObjectInput -> GetObjectOutput;
        head_object: HeadObjectInput -> HeadObjectOutput;
        list_buckets: ListBucketsInput -> ListBucketsOutput;
        list_object_versions: ListObjectVersionsInput -> ListObjectVersionsOutput;
        list_objects: ListObjectsInput -> ListObjectsOutput;
        list_objects_v2: ListObjectsV2Input -> ListObjectsV2Output;
        put_object: PutObjectInput -> PutObjectOutput;
    }
    at once {
        get_bucket_location: GetBucketLocationInput -> GetBucketLocationOutput;
        head_bucket: HeadBucketInput -> HeadBucketOutput;
    }
}
